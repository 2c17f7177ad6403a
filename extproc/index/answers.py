"""Answers of a match: from sets of holders to a dictionary of their names. Large answers are kept.

A prompt's first blocks are often held by all instances of a pool. Listing a thousand names costs more than all the rest
of a match, and the next match lists the same ones, so large answers are kept and copied.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from extproc.index import GUESSES

Held = TypeVar("Held", bound=Hashable)  # a backend's notation of a set of holders

FEW = 16  # holders that are listed as fast as looked up
KEPT_NAMES = 65_536  # in all kept answers together, about 5 MB


def totals(shares: Iterable[tuple[tuple[str, str], int]]) -> dict[str, int]:
    """Blocks by instance, of ((instance, writer), blocks): see `Index.sizes`."""
    held: dict[str, int] = {}
    for (instance, writer), blocks in shares:
        if blocks and not writer.startswith(GUESSES):
            held[instance] = held.get(instance, 0) + blocks
    return held


class Answers(Generic[Held]):
    """Big answers of one pool. `names` lists a set's instances; when that changes for a set, call `clear`."""

    def __init__(self, names: Callable[[Held], Sequence[str]], count: Callable[[Held], int]) -> None:
        self._names = names
        self._count = count
        self._kept: dict[tuple[Held, int], dict[str, int]] = {}
        self._kept_names = 0

    def merge(self, answers: Iterable[tuple[Held, int]]) -> dict[str, int]:
        """Blocks by instance name, from (holders, blocks) in ascending order: of several the last one counts."""
        merged: dict[str, int] = {}
        for held, blocks in answers:
            if self._count(held) <= FEW:
                for name in self._names(held):
                    merged[name] = blocks
            elif merged:
                merged.update(self._big(held, blocks))
            else:
                merged = self._big(held, blocks).copy()
        return merged

    def clear(self) -> None:
        """Names have changed."""
        self._kept.clear()
        self._kept_names = 0

    def _big(self, held: Held, blocks: int) -> dict[str, int]:
        answer = self._kept.get((held, blocks))
        if answer is None:
            if self._kept_names > KEPT_NAMES:
                self.clear()
            answer = dict.fromkeys(self._names(held), blocks)
            self._kept[held, blocks] = answer
            self._kept_names += len(answer)
        return answer
