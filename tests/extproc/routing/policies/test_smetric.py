"""SMetric on worked numbers, guard by guard."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.base.model import Reason
from extproc.routing.policies import View
from extproc.routing.policies.smetric import choose


def view(**changes: Any) -> View:
    """A follow-up of 1,000 bytes of history, all of it cached by instance 2; every instance has one request."""
    values: dict[str, Any] = {
        "turn": 3,
        "history": 1000,
        "prompt": 1200,
        "hits": [0, 256, 1000, 0],
        "loads": [1, 1, 1, 1],
        "cursor": 0,
    }
    values |= changes
    values["unprefilled"] = [0] * len(values["loads"])
    return View(**values)


def test_a_first_turn_ignores_the_cache() -> None:
    """A first request goes where the load is least, even if another instance has all of its prompt."""
    assert choose(view(turn=0, loads=[2, 1, 0, 3], hits=[1200, 0, 0, 0])) == (2, Reason.FIRST_TURN)


def test_first_turns_of_equal_load_go_to_who_got_least() -> None:
    """Among equals the one with the smallest share comes first, and the seed draws where shares are about equal."""
    assert choose(view(turn=0, shares=[3, 2, 1, 2], seed=5)).candidate == 2
    assert {choose(view(turn=0, shares=[1.5, 1, 3, 1.9], seed=s)).candidate for s in range(9)} == {0, 1, 3}


def test_a_follow_up_sticks_to_its_cache() -> None:
    """The longest hit wins, also over idle instances."""
    assert choose(view(loads=[0, 0, 1, 0])) == (2, Reason.STICK)


@pytest.mark.parametrize(
    ("loads", "reason"),
    [
        ([3, 3, 8, 2], Reason.STICK),  # mean 4, twice the mean is 8: not above it
        ([3, 3, 9, 1], Reason.OVERLOADED),  # mean 4, 9 > 8
    ],
)
def test_overload_is_more_than_twice_the_mean(loads: list[float], reason: Reason) -> None:
    """`overload` compares with the mean over all instances, the sticky one included."""
    assert choose(view(loads=loads)).reason is reason


def test_an_overloaded_instance_sheds_to_the_least_loaded() -> None:
    """The request leaves for the least loaded instance, not for the second best hit."""
    assert choose(view(loads=[4, 5, 30, 3])) == (3, Reason.OVERLOADED)


def test_one_request_is_no_overload() -> None:
    """At a mean load of 0.1 a session stays where it is: the floor is one request."""
    assert choose(view(hits=[0] * 9 + [1000], loads=[0] * 9 + [1])) == (9, Reason.STICK)


def test_in_prefill_pools_the_floor_is_one_prompt() -> None:
    """Loads are bytes there: an instance with no more to prefill than a prompt like this one is not overloaded."""
    few = view(hits=[0] * 9 + [1000], loads=[0] * 9 + [1200], unit=1200)
    assert choose(few) == (9, Reason.STICK)
    assert choose(view(hits=[0] * 9 + [1000], loads=[0] * 9 + [1201], unit=1200)).reason is Reason.OVERLOADED


def test_floor_zero_is_the_papers_literal_rule() -> None:
    """Without the floor the same session bounces for small-number reasons."""
    few = view(hits=[0] * 9 + [1000], loads=[0] * 9 + [1])
    assert choose(few, overload_floor=0).reason is Reason.OVERLOADED


@pytest.mark.parametrize(("hit", "reason"), [(500, Reason.EVICTED), (501, Reason.STICK)])
def test_eviction_is_no_more_than_half_of_the_history(hit: int, reason: Reason) -> None:
    """A hit counts only above `hit_ratio` of the carried history."""
    assert choose(view(hits=[0, 0, hit, 0])).reason is reason


def test_an_evicted_session_is_balanced() -> None:
    """Without its cache a session is as good as new."""
    assert choose(view(hits=[0, 0, 256, 0], loads=[1, 0, 1, 1])) == (1, Reason.EVICTED)


def test_overloaded_wins_where_both_guards_fail() -> None:
    """One reason per decision: overload is the one an operator can act on."""
    assert choose(view(hits=[0, 0, 256, 0], loads=[0, 0, 9, 0])).reason is Reason.OVERLOADED


def test_no_hit_anywhere_is_eviction_not_overload() -> None:
    """There is no sticky instance to be overloaded."""
    assert choose(view(hits=[0, 0, 0, 0], loads=[9, 0, 0, 0])) == (1, Reason.EVICTED)


def test_of_equal_hits_the_least_loaded_is_kept() -> None:
    """A session that two instances hold goes to the idler one."""
    assert choose(view(hits=[0, 1000, 1000, 0], loads=[0, 2, 1, 0])) == (2, Reason.STICK)


def test_the_thresholds_are_options() -> None:
    """`overload` and `hit_ratio` move the guards."""
    assert choose(view(loads=[3, 3, 9, 1]), overload=3).reason is Reason.STICK
    assert choose(view(hits=[0, 0, 300, 0]), hit_ratio=0.25).reason is Reason.STICK
