"""Continuity of one publisher's numbered batches: apply, replay, or forget. Sans-I/O; knows no socket and no event.

The shell (`subscription.py`) reports what it hears and performs the actions it gets back, in order. What may follow
what is a table. A publisher numbers its batches from 0 and starts over when its engine restarts; a restart may hide
behind batches that nobody heard, so every connection begins with forgetting and a replay from 0. Between connections
only these happen: the expected number, a gap (replay from there), a number heard before (a duplicate if the bytes are
the same, a restart if not), and a smaller one (a restart).

`exact` means: every batch since the cache was empty has been applied. It is reached by a replay that starts at 0, by
hearing batch 0, or by an event that clears the cache; it is lost with any batch that cannot be had. What is applied
without it is still true, though not the whole truth (`mirror.py`), so it is applied.

Longer than other files, because the table and its rows are read together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from extproc.base.model import Knowledge
from extproc.kv_events.actions import Action, Apply, Closed, Forget, Input, Purpose, Replay, State
from extproc.kv_events.numbering import Numbering

REPLAY_TIMEOUT = 5.0  # seconds without a frame; publishers look for requests every 0.1 s
# Seconds from a replay from 0 to a second look: a batch published between the answer and the moment when the
# subscription took effect was heard by neither, and an idle engine sends nothing that would show the gap.
SECOND_LOOK = 1.0
RETRY = 30.0  # seconds until a replay that nobody answered is asked for again, doubled each time
LONGEST_RETRY = 600.0


class Continuity:
    """One publisher, or one data-parallel rank of it. `now` is in seconds, of any monotonic clock."""

    def __init__(self, *, can_replay: bool) -> None:
        self._can_replay = can_replay
        self._state = State.DOWN
        self._exact = False
        self._since = 0  # the number from which on nothing is missing
        self._numbers = Numbering()
        self._deadline: float | None = None
        self._retry = RETRY
        self._owed = False  # whether a replay from 0 was never answered; it may still be, while we follow without it
        self._unanswered = False
        # of the replay in progress
        self._purpose = Purpose.START
        self._start = 0
        self._progressed = False  # whether it brought anything
        self._torn = False  # whether frames of it were lost on the way
        self._started_over = False  # whether a gap has already led to a replay from 0

    @property
    def knowledge(self) -> Knowledge:
        if self._state is State.REPLAYING and self._purpose is not Purpose.LOOK:
            return Knowledge.RECOVERING
        return Knowledge.EXACT if self._exact and self._state is not State.DOWN else Knowledge.UNKNOWN

    @property
    def deadline(self) -> float | None:
        """When to call `tick`."""
        return self._deadline

    @property
    def replaying(self) -> bool:
        """Whether it waits for the answer to a replay."""
        return self._state is State.REPLAYING

    @property
    def unanswered(self) -> bool:
        """Whether a replay was asked for and nobody answered."""
        return self._unanswered

    def connected(self, now: float) -> list[Action]:
        return self._step(Input.CONNECTED, 0, b"", now)

    def disconnected(self, now: float) -> list[Action]:
        return self._step(Input.DISCONNECTED, 0, b"", now)

    def live(self, sequence: int, payload: bytes, now: float) -> list[Action]:
        """A batch was heard."""
        return self._step(self._numbers.heard(sequence, payload), sequence, payload, now)

    def replayed(self, sequence: int, payload: bytes, now: float) -> list[Action]:
        """A frame of the newest replay came; its last has the number `END`."""
        self._unanswered = False
        return self._step(self._numbers.replayed(sequence), sequence, payload, now)

    def asked(self, now: float) -> None:
        """The replay that is wanted is asked for only now, or is still to be: the time for its answer begins."""
        if self._state is State.REPLAYING:
            self._deadline = now + REPLAY_TIMEOUT

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        if self._deadline is None or now < self._deadline:
            return []
        return self._step(Input.TIMEOUT, 0, b"", now)

    def lost(self, sequence: int) -> None:
        """The batch of this number could not be applied, and all is forgotten. A replay would bring the same batch."""
        if sequence >= self._since:
            self._exact = False

    def cleared(self, sequence: int) -> None:
        """The batch of this number cleared the cache: all that was missing is gone."""
        if sequence >= self._since:
            self._exact = True

    # Transitions. Each returns its actions.

    def _step(self, what: Input, sequence: int, payload: bytes, now: float) -> list[Action]:
        return self._TABLE[self._state, what](self, sequence, payload, now)

    def _ignore(self, _sequence: int, _payload: bytes, _now: float) -> list[Action]:
        return []

    def _begin(self, _sequence: int, _payload: bytes, now: float) -> list[Action]:
        self._numbers.begin()
        self._retry = RETRY
        self._owed = False
        self._unanswered = False
        return [Forget(), *self._start_over(now)]

    def _leave(self, _sequence: int, _payload: bytes, _now: float) -> list[Action]:
        self._state = State.DOWN
        self._deadline = None
        self._numbers.drop_held()
        return [Forget()]

    def _follow(self, sequence: int, payload: bytes, _now: float) -> list[Action]:
        if self._numbers.next is None:
            self._exact = sequence == 0
            self._since = sequence
        return [self._take(sequence, payload)]

    def _gap(self, sequence: int, payload: bytes, now: float) -> list[Action]:
        if self._can_replay:
            self._hold(sequence, payload, now)
            return self._ask(self._numbers.next or 0, Purpose.GAP, now)
        return [Closed("forgotten"), Forget(), self._resume(sequence, payload)]

    def _restarted(self, sequence: int, payload: bytes, now: float) -> list[Action]:
        self._numbers.drop_held()
        if sequence == 0 or not self._can_replay:
            return [Forget(), self._first(sequence, payload)]
        self._hold(sequence, payload, now)
        return [Forget(), *self._start_over(now)]

    def _hold_or_begin(self, sequence: int, payload: bytes, now: float) -> list[Action]:
        if sequence == 0 and self._purpose is Purpose.START:
            return [self._first(sequence, payload)]  # the engine begins just now: nothing to wait for
        return self._hold(sequence, payload, now)

    def _hold(self, sequence: int, payload: bytes, _now: float) -> list[Action]:
        self._numbers.hold(sequence, payload)
        return []

    def _replay_next(self, sequence: int, payload: bytes, now: float) -> list[Action]:
        self._numbers.remember(sequence, payload)
        self._progressed = True
        self._deadline = now + REPLAY_TIMEOUT
        return [self._take(sequence, payload)]

    def _replay_ahead(self, sequence: int, payload: bytes, now: float) -> list[Action]:
        if self._progressed:  # a ROUTER drops what its peer does not read in time: ask again for the rest
            self._torn = True
            return []
        self._numbers.remember(sequence, payload)
        self._progressed = True
        self._deadline = now + REPLAY_TIMEOUT
        missed: list[Action] = [Closed("forgotten")] if self._numbers.next else []
        self._purpose = Purpose.START
        return [*missed, Forget(), self._resume(sequence, payload)]

    def _replay_end(self, _sequence: int, _payload: bytes, now: float) -> list[Action]:
        if self._torn:
            return self._ask(self._numbers.next or 0, self._purpose, now)
        actions = self._take_held()
        if self._numbers.holds:
            if self._progressed or actions:
                return [*actions, *self._ask(self._numbers.next or 0, Purpose.GAP, now)]
            if self._start > 0 and not self._started_over:
                self._started_over = True
                return [Closed("forgotten"), Forget(), *self._start_over(now)]
            return self._give_up(now)
        self._state = State.LIVE
        self._started_over = False
        if self._purpose is Purpose.GAP:
            actions.append(Closed("replayed"))
        if self._purpose is Purpose.START:
            self._owed = False
            self._retry = RETRY
            self._deadline = now + SECOND_LOOK
        else:
            self._deadline = now + self._retry if self._owed else None
        return actions

    def _replay_timeout(self, _sequence: int, _payload: bytes, now: float) -> list[Action]:
        if self._progressed:
            return self._ask(self._numbers.next or 0, self._purpose, now)
        self._unanswered = True
        actions = self._take_held() if self._purpose is Purpose.LOOK else []
        if self._numbers.holds or self._purpose is not Purpose.LOOK:
            return [*actions, *self._give_up(now)]
        self._state = State.LIVE
        self._deadline = None
        return actions

    def _look_or_retry(self, _sequence: int, _payload: bytes, now: float) -> list[Action]:
        if self._numbers.next is not None and (self._exact or not self._owed):
            return self._ask(self._numbers.next, Purpose.LOOK, now)
        self._retry = min(2 * self._retry, LONGEST_RETRY)
        self._deadline = now + self._retry
        return [Replay(0)]  # what is known stays until an answer comes

    def _answered(self, sequence: int, payload: bytes, now: float) -> list[Action]:
        if not self._owed:
            return []  # of a replay that is over
        self._owed = False
        self._start_over(now)
        return [Forget(), *self.replayed(sequence, payload, now)]

    _TABLE: ClassVar[dict[tuple[State, Input], Callable[[Continuity, int, bytes, float], list[Action]]]] = {
        (State.DOWN, Input.CONNECTED): _begin,
        (State.DOWN, Input.DISCONNECTED): _ignore,
        (State.DOWN, Input.NEXT): _ignore,
        (State.DOWN, Input.AHEAD): _ignore,
        (State.DOWN, Input.SEEN): _ignore,
        (State.DOWN, Input.FALLEN): _ignore,
        (State.DOWN, Input.REPLAYED_NEXT): _ignore,
        (State.DOWN, Input.REPLAYED_AHEAD): _ignore,
        (State.DOWN, Input.REPLAYED_SEEN): _ignore,
        (State.DOWN, Input.REPLAYED_END): _ignore,
        (State.LIVE, Input.CONNECTED): _begin,
        (State.LIVE, Input.DISCONNECTED): _leave,
        (State.LIVE, Input.TIMEOUT): _look_or_retry,
        (State.LIVE, Input.NEXT): _follow,
        (State.LIVE, Input.AHEAD): _gap,
        (State.LIVE, Input.SEEN): _ignore,
        (State.LIVE, Input.FALLEN): _restarted,
        (State.LIVE, Input.REPLAYED_NEXT): _answered,
        (State.LIVE, Input.REPLAYED_AHEAD): _answered,
        (State.LIVE, Input.REPLAYED_SEEN): _answered,
        (State.LIVE, Input.REPLAYED_END): _answered,
        (State.REPLAYING, Input.CONNECTED): _begin,
        (State.REPLAYING, Input.DISCONNECTED): _leave,
        (State.REPLAYING, Input.TIMEOUT): _replay_timeout,
        (State.REPLAYING, Input.NEXT): _hold_or_begin,
        (State.REPLAYING, Input.AHEAD): _hold,
        (State.REPLAYING, Input.SEEN): _ignore,
        (State.REPLAYING, Input.FALLEN): _restarted,
        (State.REPLAYING, Input.REPLAYED_NEXT): _replay_next,
        (State.REPLAYING, Input.REPLAYED_AHEAD): _replay_ahead,
        (State.REPLAYING, Input.REPLAYED_SEEN): _ignore,
        (State.REPLAYING, Input.REPLAYED_END): _replay_end,
    }

    # What transitions share

    def _take(self, sequence: int, payload: bytes) -> Apply:
        self._numbers.next = sequence + 1
        return Apply(sequence, payload)

    def _resume(self, sequence: int, payload: bytes) -> Apply:
        """Go on from here after forgetting, without what is missing before."""
        self._exact = False
        self._since = sequence
        return self._take(sequence, payload)

    def _first(self, sequence: int, payload: bytes) -> Apply:
        """Follow from here; nothing is missing if this is the engine's first batch."""
        self._state = State.LIVE
        self._deadline = None
        action = self._resume(sequence, payload)
        self._exact = sequence == 0
        return action

    def _start_over(self, now: float) -> list[Action]:
        """After forgetting: from the first batch, or without a replay from the next that comes."""
        self._since = 0
        if self._can_replay:
            self._exact = True
            self._numbers.next = 0
            return self._ask(0, Purpose.START, now)
        self._exact = False
        self._numbers.next = None
        self._state = State.LIVE
        self._deadline = None
        return []

    def _ask(self, start: int, purpose: Purpose, now: float) -> list[Action]:
        self._state = State.REPLAYING
        self._purpose = purpose
        self._start = start
        self._progressed = self._torn = False
        self._deadline = now + REPLAY_TIMEOUT
        return [Replay(start)]

    def _take_held(self) -> list[Action]:
        """Apply what was held, up to the first gap."""
        return [self._take(sequence, payload) for sequence, payload in self._numbers.release()]

    def _give_up(self, now: float) -> list[Action]:
        """No answer, or not what is missing: continue with what is heard, and ask again later."""
        actions: list[Action] = [Forget()] if self._purpose is Purpose.START else [Closed("forgotten"), Forget()]
        self._exact = False
        expected: int | None = None
        for sequence, payload in self._numbers.drop_held():
            if expected is not None and sequence != expected:
                actions.append(Forget())
            actions.append(self._resume(sequence, payload))
            expected = self._numbers.next
        self._numbers.next = expected
        self._state = State.LIVE
        self._started_over = False
        self._owed = True
        self._deadline = now + self._retry
        return actions
