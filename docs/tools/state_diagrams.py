"""The two state machines as Mermaid diagrams, drawn by driving them: an arrow is there because it was taken.

A row of a table that is never taken is an error: either the row is dead, or this module does not know an event. What a
state ignores is left out.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum

from extproc.base.errors import Shed
from extproc.base.model import Reason
from extproc.kv_events import continuity
from extproc.kv_events.continuity import Action, Continuity
from extproc.kv_events.engines.frames import END
from extproc.processor import exchange, messages
from extproc.processor.destination import nowhere
from extproc.processor.exchange import Exchange
from extproc.processor.messages import BodyMode, Event

Arrow = tuple[Enum, str, Enum]
Rows = Mapping[tuple[Enum, str], str]  # state, event -> name of the method that takes it

STEPS = 30_000  # of the random walk: each row of the table is taken many times
SEED = 1


def exchange_diagram() -> str:
    """One ext_proc stream."""
    rows = {(state, event.__name__): row.__name__ for (state, event), row in Exchange.TRANSITIONS.items()}
    return _mermaid(set(_exchange_arrows()), rows, exchange.State.OPENING)


def continuity_diagram() -> str:
    """One publisher of KV events."""
    return _mermaid(set(_continuity_arrows()), _Driven.rows(), continuity.State.DOWN)


def _exchange_arrows() -> Iterator[Arrow]:
    """Every path of events, cut where a stream has been in the same situation before."""
    seen: set[tuple[object, ...]] = set()
    waiting = [Exchange()]
    while waiting:
        stream = waiting.pop()
        for name, after in _steps(stream):
            yield stream.state, name, after.state
            situation = tuple(repr(value) for key, value in sorted(vars(after).items()) if key not in _GROWING)
            if situation not in seen:
                seen.add(situation)
                waiting.append(after)


_GROWING = {"_body", "_size", "_headers", "_budget", "_taken"}  # what does not change where a stream may go


def _steps(stream: Exchange) -> Iterator[tuple[str, Exchange]]:
    for event in _events():
        after = copy.deepcopy(stream)
        try:
            after.receive(event)
        except exchange.ProtocolViolation:
            continue
        yield type(event).__name__, after
    if stream.state is exchange.State.DECIDING:
        for name in ("decided", "refused"):
            after = copy.deepcopy(stream)
            if name == "decided":
                after.decided(nowhere(Reason.NO_POOL))
            else:
                after.refused(Shed(""), nowhere(Reason.SHED))
            yield f"{name} by us", after


def _events() -> Iterable[Event]:
    modes = tuple(BodyMode)
    for mode, answer_mode, end, upgrade in itertools.product(modes, modes, (False, True), (False, True)):
        headers = {":method": "POST", ":path": "/"} | ({"upgrade": "websocket"} if upgrade else {})
        yield messages.RequestHeaders(headers, end, mode, answer_mode)
    for end in (False, True):
        yield messages.RequestBody(b"x", end)
        yield messages.ResponseHeaders({":status": "200"}, end)
        yield messages.ResponseBody(b"x", end)
    yield messages.RequestTrailers()
    yield messages.ResponseTrailers()
    yield messages.OutOfTime()


class _Driven(Continuity):
    """Notes each step that it takes."""

    def __init__(self, *, can_replay: bool) -> None:
        super().__init__(can_replay=can_replay)
        self.arrows: set[Arrow] = set()

    def _step(self, what: continuity.Input, sequence: int, payload: bytes, now: float) -> list[Action]:
        before = self._state
        actions = super()._step(what, sequence, payload, now)
        self.arrows.add((before, _words(what), self._state))
        return actions

    @classmethod
    def rows(cls) -> Rows:
        """The table's."""
        return {(state, _words(event)): row.__name__ for (state, event), row in cls._TABLE.items()}


def _continuity_arrows() -> Iterator[Arrow]:
    """Random numbers and times, the same at each call."""
    rng = random.Random(SEED)  # noqa: S311 - not secret
    for can_replay in (True, False):
        line = _Driven(can_replay=can_replay)
        now = 0.0
        for _ in range(STEPS):
            now += rng.choice((0.0, 0.0, 0.1, 2.0, 40.0, 700.0))
            sequence, payload = rng.randrange(5), rng.choice((b"a", b"b"))
            kind = rng.random()
            if kind < 0.03:
                line.connected(now)
            elif kind < 0.05:
                line.disconnected(now)
            elif kind < 0.2:
                line.tick(now)
            elif kind < 0.6:
                line.live(sequence, payload, now)
            else:
                line.replayed(rng.choice((sequence, sequence, END)), payload, now)
        yield from line.arrows


def _words(event: Enum) -> str:
    return event.name.lower().replace("_", " ")


def _mermaid(arrows: set[Arrow], rows: Rows, start: Enum) -> str:
    """One line an arrow, with all events that take it. Raises ValueError where a row was never taken."""
    missing = set(rows) - {(before, event) for before, event, _ in arrows}
    if missing:
        raise ValueError(f"never taken: {sorted((state.name, event) for state, event in missing)}")
    events: dict[tuple[Enum, Enum], list[str]] = defaultdict(list)
    for before, event, after in arrows:
        if rows.get((before, event)) != "_ignore":
            events[before, after].append(event)
    order = list(type(start))
    lines = ["stateDiagram-v2", f"    [*] --> {_name(start)}"]
    for before, after in sorted(events, key=lambda pair: (order.index(pair[0]), order.index(pair[1]))):
        lines.append(f"    {_name(before)} --> {_name(after)}: {', '.join(sorted(events[before, after]))}")
    return "\n".join(["```mermaid", *lines, "```"])


def _name(state: Enum) -> str:
    return state.name.lower()
