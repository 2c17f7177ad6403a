"""Who of a pool may have a replay under way."""

from __future__ import annotations

from collections.abc import Sequence

from extproc.kv_events.replay_turns import KEPT_S, ReplayTurns


class Engine:
    def __init__(self) -> None:
        self.waits_for_replay = True
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


def asking(turns: ReplayTurns, engines: Sequence[Engine], now: float = 0.0) -> list[bool]:
    return [turns.take(engine, now) for engine in engines]


def test_first_come_first_served() -> None:
    """Who is over lets the next one in, and is last when it asks again."""
    turns, engines = ReplayTurns(2), [Engine() for _ in range(4)]
    assert asking(turns, engines) == [True, True, False, False]
    turns.give_back(engines[1])
    assert [engine.woken for engine in engines] == [0, 0, 1, 0]
    assert asking(turns, [engines[1], engines[3], engines[2]]) == [False, False, True]
    turns.give_back(engines[0])
    assert asking(turns, [engines[1], engines[3]]) == [False, True]


def test_a_turn_that_was_not_taken_goes_on() -> None:
    """Who leaves while it waits holds up nobody; who leaves without having asked changes nothing."""
    turns, engines = ReplayTurns(1), [Engine() for _ in range(3)]
    assert asking(turns, engines) == [True, False, False]
    turns.give_back(engines[0])
    turns.give_back(engines[1])
    assert engines[2].woken == 1
    turns.give_back(Engine())
    assert asking(turns, [engines[2]]) == [True]


def test_several_turns_that_come_free_at_once() -> None:
    """Each who takes one wakes the next."""
    turns, engines = ReplayTurns(2), [Engine() for _ in range(4)]
    asking(turns, engines)
    for engine in engines[:2]:
        turns.give_back(engine)
    assert asking(turns, [engines[2]]) == [True]
    assert engines[3].woken == 1


def test_a_replay_that_nobody_answers_ends_when_another_wants_its_turn() -> None:
    """Not before an answer could have come; and never one that is waited for."""
    turns, engines = ReplayTurns(2), [Engine() for _ in range(4)]
    assert asking(turns, engines[:2]) == [True, True]
    engines[1].waits_for_replay = False
    assert asking(turns, engines[2:], KEPT_S / 2) == [False, False]
    assert turns.has(engines[1])
    assert asking(turns, engines[2:], KEPT_S) == [True, False]
    assert engines[1].woken == 1
    assert not turns.has(engines[1])
    assert turns.has(engines[0])
