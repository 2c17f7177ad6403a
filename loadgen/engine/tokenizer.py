"""Text to token ids and back, by the model's real tokenizer, fast enough for chats that are sent again and again.

Knows nothing of chats; `chat_template.py` makes the text.
"""

from __future__ import annotations

import json
import re
from array import array
from functools import lru_cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

REMEMBERED = 512  # texts between added tokens, that is, messages ...
REMEMBERED_LENGTH = 131_072  # ... of at most so many characters: at most about 150 MB together


class Tokens:
    """The tokenizer of a model directory (tokenizer.json, tokenizer_config.json)."""

    def __init__(self, model_dir: Path) -> None:
        """Load it.

        Raises:
            OSError: a file is missing.
            ValueError: a file is not what it should be.
        """
        source = (model_dir / "tokenizer.json").read_text("utf-8")
        try:
            self._tokenizer = Tokenizer.from_str(source)
        except Exception as error:  # the library raises nothing more precise
            raise ValueError(f"{model_dir}/tokenizer.json: {error}") from error
        config = json.loads((model_dir / "tokenizer_config.json").read_text("utf-8"))
        eos = self._tokenizer.token_to_id(str(config.get("eos_token")))
        if eos is None:
            raise ValueError(f"{model_dir}/tokenizer_config.json: eos_token is none of the tokenizer's tokens")
        self.eos: int = eos
        added = list(self._tokenizer.get_added_tokens_decoder().values())
        self._added = _splitter(added) if _splits_first(json.loads(self._tokenizer.to_str()), added) else None
        self._remember = lru_cache(REMEMBERED)(self._whole)

    def encode(self, text: str) -> array[int]:
        """Token ids of a text in which added tokens (`<|im_end|>` ...) count as such; nothing is put around it.

        Raises:
            ValueError: the text has no UTF-8, because it holds half a surrogate pair.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError("the text holds a lone surrogate") from error
        if self._added is None:
            return self._whole(text)
        ids = array("I")
        for part in self._added.split(text):
            ids += self._remember(part) if len(part) <= REMEMBERED_LENGTH else self._whole(part)
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text of token ids, special tokens included."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def id_of(self, token: str) -> int | None:
        """The id of one token; None where the vocabulary lacks it."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def words(self) -> list[tuple[int, str]]:
        """Tokens that are a space and a lower-case word. Any row of them re-tokenises to itself."""
        vocabulary = sorted(self._tokenizer.get_vocab().values())
        texts = [(token, self.decode([token])) for token in vocabulary]
        return [
            (token, text)
            for token, text in texts
            if re.fullmatch(" [a-z]{2,}", text) and list(self._whole(text)) == [token]
        ]

    def _whole(self, text: str) -> array[int]:
        return array("I", self._tokenizer.encode(text, add_special_tokens=False).ids)


def _splitter(added: list[AddedToken]) -> re.Pattern[str]:
    longest_first = sorted((token.content for token in added), key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if longest_first else re.compile("(?!)")


def _splits_first(tokenizer: dict[str, object], added: list[AddedToken]) -> bool:
    """Whether the text between two added tokens is tokenised without regard to what stands around it.

    True for byte-level BPE with plain added tokens (Qwen, Llama 3, GPT and their kin); false for Metaspace (Llama 2),
    whose first word is special, and for added tokens that swallow white space or look at normalised text.
    """
    if any(token.lstrip or token.rstrip or token.single_word or token.normalized for token in added):
        return False
    text = json.dumps([tokenizer.get("normalizer"), tokenizer.get("pre_tokenizer")])
    return "ByteLevel" in text and not re.search('Metaspace|Prepend|"add_prefix_space": true', text)
