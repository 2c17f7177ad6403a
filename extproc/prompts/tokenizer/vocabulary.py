"""Vocabularies: token ids -> exactly the bytes that they stand for.

Owns the tables of each family of tokenizers; refuses to know text, templates and events. Joined, the bytes of a
prompt's ids are the bytes that `prompt.Renderer` gives for it: the index compares the two.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path

from extproc.base.errors import ConfigError, UnknownToken
from extproc.base.media import WHITE
from extproc.prompts.tokenizer.files import Family, TokenizerFiles

SPACE = "▁"  # how SentencePiece writes a space

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")

# The first special tokens of tekken files that name none (mistral-common, versions up to v7).
# fmt: off
_TEKKEN_SPECIALS = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]",
    "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]",
    "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)
# fmt: on


class Vocabulary:
    """The bytes of every token id of one model."""

    def __init__(self, table: Mapping[int, bytes], added: Collection[int] = ()) -> None:
        """`added` are the ids of added tokens, special or not."""
        # A dict, not a list: a negative id from a broken event must not count from the end.
        self._bytes_of = dict(table)
        self._added = frozenset(added) & self._bytes_of.keys()
        self.added = tuple({self._bytes_of[token] for token in self._added} - {b""})  # their bytes

    @classmethod
    def load(cls, model_dir: Path) -> Vocabulary:
        """Raises ConfigError where tokenizer files are missing, malformed or of an unknown type."""
        return cls.of(TokenizerFiles.load(model_dir))

    @classmethod
    def of(cls, files: TokenizerFiles) -> Vocabulary:
        """The vocabulary of files that are loaded already."""
        try:
            return cls(dict(_TABLES[files.family](files)), _added_ids(files))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"model_dir {files.directory}: the vocabulary is malformed ({error!r})") from error

    def __len__(self) -> int:
        return len(self._bytes_of)

    def decode(self, token_ids: Sequence[int]) -> bytes:
        """The bytes of the ids, joined; they may begin or end inside a UTF-8 character.

        Raises UnknownToken for an id that the vocabulary lacks.
        """
        try:
            if len(token_ids) < 2:  # an itemgetter of one id would give no tuple
                return b"".join([self._bytes_of[token] for token in token_ids])
            return b"".join(itemgetter(*token_ids)(self._bytes_of))
        except (KeyError, TypeError) as error:
            raise UnknownToken(f"no such token in a vocabulary of {len(self)}: {error}") from error

    def decode_loosely(self, token_ids: Sequence[int]) -> bytes:
        """The bytes of the ids without added tokens and white space (`base/media.py`).

        Raises UnknownToken for an id that the vocabulary lacks.
        """
        return self.decode([token for token in token_ids if token not in self._added]).translate(None, WHITE)


def _added_ids(files: TokenizerFiles) -> Collection[int]:
    if files.family is Family.TEKKEN:
        return range(files.spec["config"]["default_num_special_tokens"])
    return [token.id for token in files.added]


def added_bytes(content: str, family: Family) -> bytes:
    """The bytes of an added token: its text as it stands, but for SentencePiece's way to write spaces."""
    return (content.replace(SPACE, " ") if family is Family.SENTENCEPIECE else content).encode()


def _byte_level(files: TokenizerFiles) -> Iterator[tuple[int, bytes]]:
    byte_of = _byte_letters()
    for piece, token_id in files.spec["model"]["vocab"].items():
        try:
            yield token_id, bytes(map(byte_of.__getitem__, piece))
        except KeyError:  # a whole word outside the alphabet, as some vocabularies pad themselves
            yield token_id, piece.encode()
    yield from _added(files)


def _byte_letters() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other 68 bytes are the letters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def _sentencepiece(files: TokenizerFiles) -> Iterator[tuple[int, bytes]]:
    for piece, token_id in files.spec["model"]["vocab"].items():
        if match := _BYTE_PIECE.fullmatch(piece):
            yield token_id, bytes.fromhex(match[1])
        else:
            yield token_id, piece.replace(SPACE, " ").encode()
    yield from _added(files)


def _tiktoken(files: TokenizerFiles) -> Iterator[tuple[int, bytes]]:
    for line in files.data.split(b"\n"):
        if line.strip():
            token, rank = line.split()
            yield int(rank), b64decode(token, validate=True)
    yield from _added(files)


def _tekken(files: TokenizerFiles) -> Iterator[tuple[int, bytes]]:
    config = files.spec["config"]
    specials: int = config["default_num_special_tokens"]
    for entry in files.spec["vocab"][: config["default_vocab_size"] - specials]:
        yield specials + entry["rank"], b64decode(entry["token_bytes"], validate=True)
    named: Iterable[tuple[int, str]] = enumerate(_TEKKEN_SPECIALS)
    if files.spec.get("special_tokens"):
        named = [(entry["rank"], entry["token_str"]) for entry in files.spec["special_tokens"]]
    names = {token_id: f"<SPECIAL_{token_id}>" for token_id in range(specials)} | dict(named)
    for token_id, name in names.items():
        yield token_id, name.encode()


def _added(files: TokenizerFiles) -> Iterator[tuple[int, bytes]]:
    for token in files.added:
        yield token.id, added_bytes(token.content, files.family)


_TABLES: Mapping[Family, Callable[[TokenizerFiles], Iterator[tuple[int, bytes]]]] = {
    Family.BYTE_LEVEL: _byte_level,
    Family.SENTENCEPIECE: _sentencepiece,
    Family.TIKTOKEN: _tiktoken,
    Family.TEKKEN: _tekken,
}
