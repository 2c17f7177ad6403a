"""One instance's events, from the frames that were heard to the changes for the index. Sans-I/O.

It ties the pure parts together: frames -> `continuity.py` (what is missing) -> an engine's adapter -> `mirror.py` (what
is held). Work is done in small steps, so that a shell can stop between any two. What is to be counted and logged is
kept until the shell takes it.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from extproc.base.model import Knowledge
from extproc.kv_events.actions import Action, Apply, Closed, Forget, Replay
from extproc.kv_events.age import Age
from extproc.kv_events.continuity import Continuity
from extproc.kv_events.engines import (
    Batch,
    Cleared,
    Decode,
    Event,
    Removed,
    Stored,
    Tier,
    UnusableEvents,
    frames,
    pieces,
)
from extproc.kv_events.mirror import Delta, Mirror

PIECE = 128  # engine blocks of one step: well under a millisecond

_END = object()
_KINDS = {Stored: "stored", Removed: "removed", Cleared: "cleared"}


class Trouble(NamedTuple):
    """Something that could not be used: a slug for metrics, a sentence for the log, how often."""

    cause: str
    detail: str
    times: int = 1


class _Reading(NamedTuple):
    """A batch that is being applied, piece by piece."""

    sequence: int
    batch: Batch
    pieces: Iterator[Event | None]  # None where a piece of reading is done


class Feed:
    """Hear, `step` until there is nothing to do, `drain`. `now` is in seconds, of any monotonic clock."""

    def __init__(self, decode: Decode, mirror: Mirror, *, rank: int | None, can_replay: bool) -> None:
        self._decode = decode
        self._mirror = mirror
        self._rank = rank
        self._continuity = Continuity(can_replay=can_replay)
        self._todo: deque[Action | _Reading] = deque()
        self.sequence = -1  # of the newest batch applied
        self.lag = 0.0  # seconds from the newest batch's timestamp to its being applied
        self.said = 0.0  # when the newest batch was said, by our wall clock
        self._age = Age()
        self.replay: int | None = None  # ask for a replay from here, on a fresh socket; the shell sets it to None
        # For the shell to take and clear
        self.events: Counter[str] = Counter()  # by kind
        self.blocks: Counter[tuple[str, Tier]] = Counter()  # engine blocks in events, by kind
        self.gaps: Counter[str] = Counter()  # by outcome
        self.troubles: list[Trouble] = []

    @property
    def knowledge(self) -> Knowledge:
        return self._continuity.knowledge

    @property
    def replaying(self) -> bool:
        """Whether it waits for the answer to a replay."""
        return self._continuity.replaying

    @property
    def unanswered(self) -> bool:
        """Whether a replay was asked for and nobody answered."""
        return self._continuity.unanswered

    @property
    def deadline(self) -> float | None:
        """When to call `tick`."""
        return self._continuity.deadline

    def connected(self, now: float) -> None:
        self._todo += self._continuity.connected(now)

    def disconnected(self, now: float) -> None:
        self._todo += self._continuity.disconnected(now)

    def tick(self, now: float) -> bool:
        """Time has passed; whether that means work."""
        self._todo += self._continuity.tick(now)
        return bool(self._todo)

    def heard(self, message: Sequence[bytes], now: float) -> None:
        """A published message."""
        try:
            sequence, payload = frames.published(message)
        except UnusableEvents as error:
            self._complain(error)  # if it had a number, that number will be missed
            return
        self._todo += self._continuity.live(sequence, payload, now)

    def replayed(self, message: Sequence[bytes], now: float) -> bool:
        """A frame of the replay asked for last; whether it was the last one."""
        try:
            sequence, payload = frames.replayed(message)
        except UnusableEvents as error:
            self._complain(error)
            return False
        self._todo += self._continuity.replayed(sequence, payload, now)
        return sequence == frames.END

    def asked(self, now: float) -> None:
        """`replay` is asked for only now, or is still to be."""
        self._continuity.asked(now)

    def step(self, wall_clock: float) -> bool:
        """Do a piece of what is to be done; False if there was nothing."""
        if not self._todo or self._mirror.crowded:
            return self._mirror.settle()
        match self._todo.popleft():
            case _Reading() as reading:
                self._read(reading, wall_clock)
            case Apply(sequence, payload):
                self._open(sequence, payload, wall_clock)
            case Forget():
                self._mirror.forget()
                self.sequence = -1
            case Replay(start):
                self.replay = start
            case Closed(outcome):
                self.gaps[outcome] += 1
        return True

    def drain(self) -> Delta:
        """What changed since the last call."""
        delta = self._mirror.drain()
        for cause, blocks in delta.ignored.items():
            self.blocks[cause, Tier.GPU] += blocks
            if cause == "unknown_token":
                self.troubles.append(Trouble(cause, "tokens not in the vocabulary: model_dir is of another model"))
        return delta

    def everything(self) -> tuple[Sequence[int], Sequence[str]]:
        """The keys held, earlier blocks of a chain before later ones, and the LoRA adapters seen."""
        return list(self._mirror.held), list(self._mirror.adapters)

    def _open(self, sequence: int, payload: bytes, wall_clock: float) -> None:
        self.sequence = sequence
        try:
            batch = self._decode(payload)
        except UnusableEvents as error:
            self._lose(sequence, error)
        else:
            self.said = wall_clock - self._age_of(batch, wall_clock)
            self._todo.appendleft(_Reading(sequence, batch, _pieces(batch)))

    def _read(self, reading: _Reading, wall_clock: float) -> None:
        try:
            piece = next(reading.pieces, _END)
        except UnusableEvents as error:
            self._lose(reading.sequence, error)
            return
        if piece is _END:
            self._close(reading.batch, wall_clock)
            return
        self._todo.appendleft(reading)
        if isinstance(piece, Event):
            self._apply(reading.sequence, piece)

    def _close(self, batch: Batch, wall_clock: float) -> None:
        if batch.skipped:
            self.troubles.append(Trouble("unknown_event", "an event of a kind that we do not know", batch.skipped))
        if None not in (batch.rank, self._rank) and batch.rank != self._rank:
            self.troubles.append(Trouble("rank", f"rank {batch.rank} publishes where rank {self._rank} should"))
        if self.knowledge is not Knowledge.RECOVERING and math.isfinite(batch.timestamp):
            self.lag = max(0.0, wall_clock - batch.timestamp)

    def _age_of(self, batch: Batch, wall_clock: float) -> float:
        if not math.isfinite(batch.timestamp):
            return 0.0
        if self.knowledge is Knowledge.RECOVERING:
            return self._age.of(batch.timestamp, wall_clock)
        return self._age.heard(batch.timestamp, wall_clock)

    def _apply(self, sequence: int, event: Event) -> None:
        kind = _KINDS[type(event)]
        self.events[kind] += 1
        if isinstance(event, Cleared):
            self._continuity.cleared(sequence)
        else:
            self.blocks[kind, event.tier] += len(event.hashes)
        try:
            self._mirror.apply(event)
        except UnusableEvents as error:
            self._lose(sequence, error)

    def _lose(self, sequence: int, error: UnusableEvents) -> None:
        self._complain(error)
        self._continuity.lost(sequence)
        self._mirror.forget()

    def _complain(self, error: UnusableEvents) -> None:
        self.troubles.append(Trouble(error.cause, str(error)))


def _pieces(batch: Batch) -> Iterator[Event | None]:
    for event in batch.events:
        if event is None:
            yield None
        else:
            yield from pieces(event, PIECE)
