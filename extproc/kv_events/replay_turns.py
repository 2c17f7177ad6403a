"""Who of a pool may have a replay under way: so many at a time, since each takes descriptors, memory and a reading.

Without it a start beside a thousand engines asks all of them at once. An answer comes in milliseconds, and whoever
waits asks then. A replay that nobody answers keeps its turn until another wants it: it may still be answered.
Pure: it knows those who ask as keys, and wakes them.
"""

from __future__ import annotations

from typing import Final, Protocol

AT_ONCE: Final = 128  # with a thousand engines of which none answers, the last knows after less than a minute
KEPT_S: Final = 5.0  # an answer that comes at all comes within that, but for engines that hang


class Asking(Protocol):
    """Who asks for replays."""

    @property
    def waits_for_replay(self) -> bool:
        """Whether it does nothing else before the answer, or before it gives up."""

    def wake(self) -> None:
        """It may be its turn, or no longer."""


class ReplayTurns:
    """First come, first served."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._under_way: dict[Asking, float] = {}  # since when; the oldest first
        self._waiting: dict[Asking, None] = {}  # likewise

    def has(self, who: Asking) -> bool:
        """Whether it is its turn."""
        return who in self._under_way

    def take(self, who: Asking, now: float) -> bool:
        """Whether it may ask now. If not it is woken when a turn is given back, and should look every second too."""
        if self.has(who):
            return True
        self._waiting[who] = None
        if who is not next(iter(self._waiting)) or not self._make_room(now):
            return False
        del self._waiting[who]
        self._under_way[who] = now
        self._wake_next()
        return True

    def give_back(self, who: Asking) -> None:
        """Its replay is over, or it wants none any more."""
        if who in self._under_way or who in self._waiting:
            self._under_way.pop(who, None)
            self._waiting.pop(who, None)
            self._wake_next()

    def _make_room(self, now: float) -> bool:
        if len(self._under_way) < self._at_once:
            return True
        old = (one for one, since in self._under_way.items() if now - since >= KEPT_S)
        unanswered = next((one for one in old if not one.waits_for_replay), None)
        if unanswered is None:
            return False
        del self._under_way[unanswered]
        unanswered.wake()
        return True

    def _wake_next(self) -> None:
        if self._waiting:
            next(iter(self._waiting)).wake()
