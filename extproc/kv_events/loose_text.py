"""The text of engine blocks from a prompt's first medium on, in the form in which it is compared (`base/media.py`).

An engine names the media of a block and says where each begins; where it ends shows in the tokens: what stands for a
medium is a run of one token, perhaps with added tokens between. Refuses to know trees, events and wire formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Protocol

from extproc.base.errors import UnknownToken
from extproc.base.media import STAND_IN


class Vocabulary(Protocol):
    """What is asked of `vocabulary.Vocabulary`. Both methods raise `errors.UnknownToken`."""

    @property
    def added(self) -> tuple[bytes, ...]:
        """The bytes of every added token."""

    def decode(self, token_ids: Sequence[int]) -> bytes:
        """The bytes that the tokens stand for."""

    def decode_loosely(self, token_ids: Sequence[int]) -> bytes:
        """The same without added tokens and white space."""


Block = tuple[Sequence[int], Sequence[int]]  # tokens, and where media begin


def first(vocabulary: Vocabulary, block: Block) -> tuple[bytes, bytes]:
    """Of the first block with a medium: the text before it as it stands, and what follows, loosely.

    Raises UnknownToken.
    """
    before, *texts = _texts(*block)
    return vocabulary.decode(before), STAND_IN * bool(texts) + STAND_IN.join(map(vocabulary.decode_loosely, texts))


def later(vocabulary: Vocabulary, blocks: Iterable[Block]) -> Iterator[bytes]:
    """Of each block behind the first with a medium, up to the first that the vocabulary does not know."""
    with suppress(UnknownToken):
        for block in blocks:
            yield STAND_IN.join(map(vocabulary.decode_loosely, _texts(*block)))


def _texts(tokens: Sequence[int], media: Sequence[int]) -> list[Sequence[int]]:
    """The tokens that are text: up to the first medium that begins here, and behind each of them."""
    texts: list[Sequence[int]] = []
    done = 0
    begins = sorted(offset for offset in media if offset < len(tokens))
    for offset, limit in pairwise([*begins, len(tokens)]):
        begin = max(offset, 0)
        if offset >= 0:
            texts.append(tokens[done:begin])
        done = begin
        while done < limit and tokens[done] == tokens[begin]:
            done += 1
    return [*texts, tokens[done:]]
