"""The tokenizer files of a model directory: which family they belong to, and the tokens that are added to it.

Owns file names and formats, and the messages about what is missing; refuses to know what ids or texts become
(`vocabulary.py`, `normalizer.py`). Every problem is a `ConfigError` that names the file and the remedy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from extproc.base.errors import ConfigError

Json = dict[str, Any]


class Family(StrEnum):
    """How a vocabulary writes bytes."""

    BYTE_LEVEL = "byte-level BPE"  # GPT-2, Qwen, Llama 3, DeepSeek: one letter stands for each byte
    SENTENCEPIECE = "SentencePiece BPE"  # Llama 2, Gemma, Mistral: "▁" is a space, <0xNN> a byte
    TIKTOKEN = "tiktoken"  # lines of base64 and rank
    TEKKEN = "tekken"  # the same as JSON, ids shifted by the number of special tokens


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is found in the text as it stands, before the model's own splitting."""

    id: int
    content: str
    lstrip: bool = False  # takes the white space before it, which its id does not give back
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False  # looked for in the normalised text

    @classmethod
    def read(cls, token_id: int, raw: Mapping[str, Any]) -> AddedToken:
        """From an entry of `added_tokens` or `added_tokens_decoder`."""
        flags = {name: bool(raw.get(name, False)) for name in ("lstrip", "rstrip", "single_word")}
        # The default of `normalized` is that of Hugging Face's AddedToken: special tokens are not.
        normalized = bool(raw.get("normalized", not raw.get("special", False)))
        return cls(token_id, str(raw["content"]), normalized=normalized, **flags)


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What a model directory says about its tokenizer."""

    directory: Path
    family: Family
    data: bytes  # of tokenizer.json, tekken.json or the tiktoken file
    spec: Json  # tokenizer.json or tekken.json; empty for tiktoken
    config: Json  # tokenizer_config.json; empty where there is none
    added: tuple[AddedToken, ...] = field(default=())

    @classmethod
    def load(cls, directory: Path) -> TokenizerFiles:
        """Raises ConfigError where files are missing, unreadable or of a tokenizer that we do not know."""
        if not directory.is_dir():
            raise ConfigError(f"model_dir {directory} is not a directory; put the model's tokenizer files there")
        config = read_json(directory / "tokenizer_config.json") or {}
        tokenizer = directory / "tokenizer.json"
        tiktoken = sorted(itertools.chain(directory.glob("*.tiktoken"), directory.glob("tiktoken.model")))
        tekken = directory / "tekken.json"
        try:
            if (spec := read_json(tokenizer)) is not None:
                return cls(
                    directory, _family(tokenizer, spec), tokenizer.read_bytes(), spec, config, _added(spec, config)
                )
            if tiktoken:
                return cls(directory, Family.TIKTOKEN, tiktoken[0].read_bytes(), {}, config, _added({}, config))
            if (spec := read_json(tekken)) is not None:
                return cls(directory, Family.TEKKEN, tekken.read_bytes(), spec, config)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"model_dir {directory}: the tokenizer files are malformed ({error!r})") from error
        if (directory / "tokenizer.model").exists():
            raise ConfigError(
                f"model_dir {directory} has only a SentencePiece tokenizer.model; add a tokenizer.json: "
                "`transformers.AutoTokenizer.from_pretrained(dir).save_pretrained(dir)` writes one"
            )
        raise ConfigError(
            f"model_dir {directory} has no tokenizer.json (nor *.tiktoken, tiktoken.model, tekken.json); "
            "copy it from the model that the engines serve"
        )

    def named_tokens(self) -> dict[str, str]:
        """Special tokens by name (`bos_token`, `image_token` ...): what a chat template sees of the tokenizer."""
        raw = dict(self.config)
        if "added_tokens_decoder" not in raw:  # files of before transformers 4.34 keep them apart
            raw |= read_json(self.directory / "special_tokens_map.json") or {}
        extra = raw.get("extra_special_tokens")
        named = {name: value for name, value in raw.items() if name.endswith("_token")}
        named |= extra if isinstance(extra, dict) else {}
        contents = {name: value.get("content") if isinstance(value, dict) else value for name, value in named.items()}
        return {name: content for name, content in contents.items() if isinstance(content, str)}

    def doubts(self) -> list[str]:
        """What an operator should know because engines may tokenise otherwise than these files say."""
        rebuilt = ("LlamaTokenizer", "LlamaTokenizerFast")
        if self.family is not Family.SENTENCEPIECE or self.config.get("tokenizer_class") not in rebuilt:
            return []
        scheme = "always" if self.config.get("legacy") else "first"
        if self.config.get("add_prefix_space") is False:
            scheme = "never"
        given = self.spec.get("pre_tokenizer") or {}
        if not self.spec.get("normalizer") and given.get("prepend_scheme") == scheme:
            return []
        doubt = (
            f"{self.directory}: transformers 5 builds a LlamaTokenizer anew (Metaspace, prepend_scheme {scheme!r}), "
            "whatever tokenizer.json says. If your engines run it, put there what their "
            "`transformers.AutoTokenizer.from_pretrained(model).save_pretrained(dir)` writes"
        )
        return [doubt]


def read_json(path: Path) -> Json | None:
    """The object in a JSON file; None where there is no such file."""
    try:
        document = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path} is not a JSON object")
    return document


def component_types(component: Any) -> Iterator[str]:
    """The `type` of a normalizer, pre-tokenizer or decoder of tokenizer.json, and of those in its sequence."""
    if isinstance(component, dict):
        yield str(component.get("type"))
        for members in component.values():
            if isinstance(members, list):
                for member in members:
                    yield from component_types(member)


def _family(path: Path, spec: Json) -> Family:
    model = spec["model"]
    kind = model.get("type", "BPE" if "merges" in model else None)
    parts = {*component_types(spec.get("pre_tokenizer")), *component_types(spec.get("decoder"))}
    if kind == "BPE":
        if "ByteLevel" in parts:
            return Family.BYTE_LEVEL
        if model.get("byte_fallback") or "ByteFallback" in parts or "Metaspace" in parts:
            return Family.SENTENCEPIECE
    raise ConfigError(
        f"{path}: unknown type of tokenizer: model {kind}, parts {', '.join(sorted(parts)) or 'none'}; known are "
        "byte-level BPE and SentencePiece BPE with byte fallback. Use `source: routed` without model_dir instead"
    )


def _added(spec: Json, config: Json) -> tuple[AddedToken, ...]:
    """Tokens of tokenizer.json, then those that only tokenizer_config.json names, as transformers merges them."""
    added = [AddedToken.read(int(raw["id"]), raw) for raw in spec.get("added_tokens") or ()]
    known = {token.content for token in added}
    for token_id, raw in (config.get("added_tokens_decoder") or {}).items():
        if raw["content"] not in known:
            added.append(AddedToken.read(int(token_id), raw))
    return tuple(added)
