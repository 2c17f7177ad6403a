"""New blocks of an event into the forest, each with its text: as it stands, or loosely from a prompt's first medium on.

Owns which of the two a block gets. Refuses to know what is held of the blocks, and groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from extproc.base.errors import UnknownToken
from extproc.kv_events import loose_text
from extproc.kv_events.block_tree import Forest, Run
from extproc.kv_events.engines import Stored

Place = tuple[Run, int]


class Vocabulary(Protocol):
    """What a mirror asks of `vocabulary.Vocabulary`."""

    def decode(self, token_ids: Sequence[int]) -> bytes:
        """The bytes that the tokens stand for. Raises `errors.UnknownToken`."""


class Growth:
    """Adds blocks, and knows how long their tokens are."""

    def __init__(self, vocabulary: Vocabulary, loose: loose_text.Vocabulary | None) -> None:
        self._vocabulary = vocabulary
        self._loose = loose
        self.token_bytes = 0.0  # of a token in the block with the longest ones

    def known(self, event: Stored) -> int:
        """How many leading blocks of an event have a text that can be told."""
        plain = len(event.hashes) if event.plain is None else min(event.plain, len(event.hashes))
        return plain if self._loose is None else event.known

    def grow(
        self, forest: Forest, behind: Place | None, root: int, event: Stored, first: int, until: int
    ) -> Iterator[Place]:
        """Add the blocks from `first` to `until`, which the forest must lack, up to one whose tokens nobody knows.

        Yields every stretch added, as `Forest.grow`.
        """
        loose = behind is not None and behind[0].loose
        medium = first if loose else min((at for at in event.media if first <= at < until), default=until)
        texts = list(self._texts(event, first, medium))
        self.token_bytes = max(self.token_bytes, max(map(len, texts), default=0) / event.block_size)
        for run, position in forest.grow(behind, root, event.hashes[first:medium], texts):
            yield run, position
            behind = run, len(run.hashes) - 1
        if len(texts) == medium - first and medium < until:
            into, loosely = self._loosely(forest, behind, root, event, medium, until)
            yield from forest.grow(behind, root, event.hashes[medium:until], loosely, into)

    def _texts(self, event: Stored, first: int, until: int) -> Iterator[bytes]:
        """The text of each block, up to the first that the vocabulary does not know."""
        with suppress(UnknownToken):
            for block in range(first, until):
                yield self._vocabulary.decode(event.tokens_of(block))

    def _loosely(
        self, forest: Forest, behind: Place | None, root: int, event: Stored, first: int, until: int
    ) -> tuple[Run | None, list[bytes]]:
        """The same from a prompt's first medium on, and a run for the blocks where that is in the first of them."""
        vocabulary = self._loose
        if vocabulary is None:
            return None, []
        told = [(event.tokens_of(block), event.media.get(block, ())) for block in range(first, until)]
        if behind is not None and behind[0].loose:
            return None, list(loose_text.later(vocabulary, told))
        try:
            raw, rest = loose_text.first(vocabulary, told[0])
        except UnknownToken:
            return None, []
        into, kept = forest.loosened(behind, root, raw, vocabulary.added)
        return into, [kept + rest, *loose_text.later(vocabulary, told[1:])]
