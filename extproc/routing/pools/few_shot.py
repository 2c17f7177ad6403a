"""Whether replies in a request are examples that a client wrote, and not a session's history. Pure and bounded.

Few-shot examples stand in a prompt as messages of the assistant: a session's first request then looks like a follow-up,
and all sessions that share the examples pile up on the instance that saw them first. What tells them apart: a session's
history grew request by request, so some request before it asked for its replies. Examples were never asked for, and
several sessions go on from them in different ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MOST_EXAMPLES = 8  # replies that may be examples; a request with more is a session's, and is not remembered
SEVERAL = 3  # different requests that go on from one history: with two, one may be the other one edited
CAPACITY = 16_384  # requests remembered, and histories


class Spoken(NamedTuple):
    """The messages of a request, as keys of all that stands before a place in them."""

    replies: Sequence[int]  # before each reply: what was asked for it
    history: int  # up to the end of the last reply
    whole: int  # all of it: what the next reply answers


class FewShot:
    """Remembers what was asked of a pool, and which histories several requests went on from."""

    def __init__(self) -> None:
        self._asked: dict[int, None] = {}  # what was used last stands last
        self._histories: dict[int, frozenset[int]] = {}

    def begins(self, spoken: Spoken) -> bool:
        """Whether a request with these replies begins a session all the same; it is remembered."""
        grown = any(key in self._asked for key in spoken.replies)
        self._asked.pop(spoken.whole, None)
        self._asked[spoken.whole] = None
        _bound(self._asked)
        if grown or not spoken.replies:
            return False
        others = self._histories.pop(spoken.history, frozenset())
        if len(others) < SEVERAL:
            others |= {spoken.whole}
        self._histories[spoken.history] = others
        _bound(self._histories)
        return len(others) >= SEVERAL

    def copy(self) -> FewShot:
        """The same memory, apart: what is explained is not done."""
        other = FewShot()
        other._asked, other._histories = dict(self._asked), dict(self._histories)
        return other


def _bound(memory: dict[int, None] | dict[int, frozenset[int]]) -> None:
    if len(memory) > CAPACITY:
        del memory[next(iter(memory))]
