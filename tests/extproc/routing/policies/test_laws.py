"""Laws that every policy keeps. A new policy file is tested here without a change."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.routing.pace import Pace
from extproc.routing.policies import View, in_turn, lowest, registry

POLICIES = registry.names()


@st.composite
def views(draw: st.DrawFn) -> View:
    """Any view that a router can build, the extremes included: no history, no load, no hit, one instance."""
    count = draw(st.integers(1, 40))
    prompt = draw(st.integers(0, 10**7))
    lengths = st.integers(0, prompt)
    shares = st.lists(st.floats(0, 100), min_size=count, max_size=count) | st.just([])
    return View(
        turn=draw(st.integers(0, 500)),
        history=draw(lengths),
        prompt=prompt,
        hits=draw(st.lists(lengths | st.just(0), min_size=count, max_size=count)),
        loads=draw(st.lists(st.integers(0, 1000) | st.floats(0, 1e9), min_size=count, max_size=count)),
        cursor=draw(st.integers(0, 10**9)),
        unprefilled=draw(st.lists(st.integers(0, 10**9), min_size=count, max_size=count)),
        seed=draw(st.integers(0, 2**64 - 1)),
        shares=draw(shares),
        waits=draw(st.lists(st.floats(0, 1e9), min_size=count, max_size=count)),
        pace=Pace(draw(st.floats(0, 1)), draw(st.floats(1, 1e9)), draw(st.floats(0, 1) | st.just(math.inf))),
    )


@pytest.mark.parametrize("name", POLICIES)
@given(view=views())
def test_a_candidate_is_returned_and_nothing_is_changed(name: str, view: View) -> None:
    """A policy is total, chooses one of the candidates, leaves its input alone, and repeats itself."""
    before = copy.deepcopy(view)
    verdict = registry.get(name)(view)
    assert 0 <= verdict.candidate < len(view.loads)
    assert view == before
    assert registry.get(name)(view) == verdict


@pytest.mark.parametrize("name", POLICIES)
def test_equal_instances_take_turns(name: str) -> None:
    """Where nothing tells instances apart, first turns spread evenly as the seed (or the cursor) moves."""
    views = [View(0, 0, 1000, [0] * 4, [0] * 4, turn, [0] * 4, seed=turn, waits=[0] * 4) for turn in range(8)]
    chosen = [registry.get(name)(view).candidate for view in views]
    assert sorted(chosen) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("name", POLICIES)
def test_options_have_numeric_defaults(name: str) -> None:
    """Options come from headers as numbers, so every option is a number with a default."""
    assert all(isinstance(value, (int, float)) for value in registry.options(name).values())


def test_an_unknown_policy_is_a_key_error() -> None:
    """The registry answers for its own files only."""
    with pytest.raises(KeyError):
        registry.get("no-such-policy")


@given(view=views(), data=st.data())
def test_lowest_returns_a_minimum(view: View, data: st.DataObject) -> None:
    """`lowest` returns one of the minima, whatever the shares and the seed."""
    scores = data.draw(st.lists(st.floats(0, 5), min_size=len(view.loads), max_size=len(view.loads)))
    assert scores[lowest(scores, view)] == min(scores)


def test_who_got_least_is_next() -> None:
    """Of the tied candidates one with about the smallest share; the seed draws among these, and nobody else is tied."""
    view = View(0, 0, 0, [0] * 5, [0] * 5, 0, [0] * 5, shares=[0, 4, 0, 2, 2.9])
    assert {in_turn([1, 3, 4], replace(view, seed=seed)) for seed in range(8)} == {3, 4}
    assert in_turn([1], view) == 1
    with pytest.raises(ValueError, match="no candidate"):
        in_turn([], view)
