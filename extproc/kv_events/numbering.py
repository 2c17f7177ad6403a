"""Which input a numbered batch is: the expected one, one after a gap, a duplicate, or one of a restarted engine.

It owns the number that is expected next, the memory of what was heard (digests of the last batches), and the batches
that are held while a replay runs. It refuses to know states and decides nothing: `continuity.py` does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from xxhash import xxh3_64_intdigest

from extproc.kv_events.actions import Input
from extproc.kv_events.engines.frames import END

HELD_BATCHES = 4096  # that wait for the end of a replay; what is beyond is a gap afterwards
HELD_BYTES = 32 * 1024 * 1024
REMEMBERED = 1024  # batches whose duplicates are told from a restarted engine's, by their bytes


class Numbering:
    """Of one publisher, which numbers its batches from 0 and starts over when its engine restarts."""

    def __init__(self) -> None:
        self.next: int | None = None  # the number expected; None takes any
        self._newest = -1  # the newest number heard or replayed
        self._recent: dict[int, int] = {}  # digests of the last batches, by number
        self._held: deque[tuple[int, bytes]] = deque()
        self._held_bytes = 0

    @property
    def holds(self) -> bool:
        """Whether a batch waits for the end of a replay."""
        return bool(self._held)

    def begin(self) -> None:
        """A new connection: whatever was heard before says nothing of it."""
        self._newest = -1
        self._recent.clear()
        self.drop_held()

    def heard(self, sequence: int, payload: bytes) -> Input:
        """What a batch is that was heard live. It is remembered."""
        if sequence > self._newest:
            what = Input.NEXT if self.next is None or sequence == self.next else Input.AHEAD
        elif self._recent.get(sequence) == xxh3_64_intdigest(payload):
            what = Input.SEEN
        else:
            what = Input.FALLEN
            self._recent.clear()
            self._newest = -1
        self.remember(sequence, payload)
        return what

    def replayed(self, sequence: int) -> Input:
        """What a frame of a replay is."""
        if sequence == END:
            return Input.REPLAYED_END
        expected = self.next or 0
        if sequence == expected:
            return Input.REPLAYED_NEXT
        return Input.REPLAYED_AHEAD if sequence > expected else Input.REPLAYED_SEEN

    def remember(self, sequence: int, payload: bytes) -> None:
        """It was taken from a replay: heard again, it is a duplicate."""
        self._newest = max(self._newest, sequence)
        self._recent[sequence] = xxh3_64_intdigest(payload)
        if len(self._recent) > REMEMBERED:
            del self._recent[next(iter(self._recent))]

    def hold(self, sequence: int, payload: bytes) -> None:
        """Keep a batch for later, while there is room."""
        if len(self._held) < HELD_BATCHES and self._held_bytes + len(payload) <= HELD_BYTES:
            self._held.append((sequence, payload))
            self._held_bytes += len(payload)

    def release(self) -> Iterator[tuple[int, bytes]]:
        """What is held and expected, up to the first gap; each must become expected before the next is asked for."""
        while self._held and (self.next is None or self._held[0][0] <= self.next):
            sequence, payload = self._held.popleft()
            self._held_bytes -= len(payload)
            if self.next is None or sequence == self.next:
                yield sequence, payload

    def drop_held(self) -> list[tuple[int, bytes]]:
        """Hold nothing; returns what was held."""
        held = list(self._held)
        self._held.clear()
        self._held_bytes = 0
        return held
