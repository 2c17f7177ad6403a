"""The pace of a pool is learnt from what its engines did, and nothing that one prefill does leads it astray."""

from __future__ import annotations

import math
import random

import pytest

from extproc.routing.pace import BYTE_S, DEPTH, FEWEST, Given, Learner, Pace, Sample, stretch

TRUE = Pace(byte_s=3e-6, depth=60_000.0)  # four times faster than what is taken before the first


def did(pace: Pace, begin: int, end: int, *, noise: float = 1.0) -> Sample:
    """A stretch of one prompt that nobody else held, as an engine of this pace does it."""
    return Sample(noise * pace.compute(begin, end), *stretch(begin, end))


def fetched(pace: Pace, hit: int, best: int, end: int) -> Sample:
    """A prompt of which another instance held more."""
    return Sample(pace.prefill(hit, best, end), *stretch(best, end), *stretch(hit, best))


def test_a_prefill_by_hand() -> None:
    """A second a byte, twice that at 100 bytes of context: bytes 100 to 200 cost 100 * (1 + 300 / 200) seconds."""
    pace = Pace(byte_s=1.0, depth=100.0)
    assert pace.compute(100, 200) == 250
    assert pace.compute(200, 100) == 0
    assert pace.prefill(0, 100, 200) == 150 + 250
    assert Pace(1.0, 100.0, fetch_s=0.25).prefill(0, 100, 200) == 25 + 250
    assert Pace(1.0, 100.0, fetch_s=9.0).prefill(0, 100, 200) == 150 + 250, "a fetch costs no more than computing"
    assert pace.prefill(300, 100, 400) == pace.compute(300, 400), "more than the best: the hit of a moment ago"


def test_before_the_first_prefill_it_is_sane() -> None:
    """A published GPU's pace, and nothing to fetch from; a few prefills do not change it."""
    learner = Learner()
    assert learner.pace == Pace(BYTE_S, DEPTH, math.inf)
    for _ in range(FEWEST - 1):
        learner.note(did(TRUE, 0, 50_000))
    assert learner.pace == Pace(BYTE_S, DEPTH, math.inf)


def test_constants_are_learnt_from_prefills() -> None:
    """Prompts of all lengths, timed within 10 %: both constants are right within a tenth and a quarter."""
    learner, draw = Learner(), random.Random(1)
    for _ in range(200):
        begin = draw.choice([0, 0, 60_000, 200_000])
        learner.note(did(TRUE, begin, begin + draw.randint(5_000, 60_000), noise=draw.uniform(0.9, 1.1)))
    assert learner.pace.byte_s == pytest.approx(TRUE.byte_s, rel=0.1)
    assert learner.pace.depth == pytest.approx(TRUE.depth, rel=0.25)


def test_prompts_of_one_depth_leave_the_depth_as_it_was() -> None:
    """A slope cannot be seen: the pace fits at that depth, and attention keeps its usual share."""
    learner = Learner()
    for _ in range(20):
        learner.note(did(TRUE, 0, 20_000))
    assert learner.pace.depth == DEPTH
    assert learner.pace.compute(0, 20_000) == pytest.approx(TRUE.compute(0, 20_000))


def test_a_few_prefills_that_something_held_up_change_nothing() -> None:
    """One in six takes twenty times as long: a median does not see it."""
    learner = Learner()
    for number in range(60):
        begin = 80_000 * (number % 4)
        learner.note(did(TRUE, begin, begin + 30_000, noise=20.0 if number % 6 == 5 else 1.0))
    assert learner.pace.byte_s == pytest.approx(TRUE.byte_s, rel=0.2)


def test_wrong_constants_heal() -> None:
    """A GPU three times slower than all before: within 200 prefills the pace is right."""
    learner, slow = Learner(), Pace(3 * TRUE.byte_s, TRUE.depth)
    for pace in (TRUE, slow):
        for number in range(200):
            begin = 50_000 * (number % 5)
            learner.note(did(pace, begin, begin + 30_000))
    assert learner.pace.byte_s == pytest.approx(slow.byte_s, rel=0.05)


@pytest.mark.parametrize("price", [0.0, 1.5e-6, math.inf])
def test_a_tier_is_noticed(price: float) -> None:
    """What another instance held is fetched at some price, or computed where there is no tier: either is learnt."""
    true, learner = Pace(TRUE.byte_s, TRUE.depth, price), Learner()
    for number in range(60):
        begin = 60_000 * (number % 4)
        learner.note(did(true, begin, begin + 30_000))
        learner.note(fetched(true, begin, begin + 40_000, begin + 60_000))
    assert learner.pace.prefill(0, 40_000, 60_000) == pytest.approx(true.prefill(0, 40_000, 60_000), rel=0.05)


def test_what_is_set_by_hand_stays() -> None:
    """Each constant for itself; what is not set is fitted to it."""
    learner = Learner(Given(depth=10_000.0, fetch_s=1e-6))
    for number in range(60):
        learner.note(did(TRUE, 50_000 * (number % 4), 50_000 * (number % 4) + 30_000))
    assert (learner.pace.depth, learner.pace.fetch_s) == (10_000.0, 1e-6)
    assert learner.pace.compute(0, 130_000) == pytest.approx(TRUE.compute(0, 130_000), rel=0.5)


def test_what_is_set_by_hand_may_change() -> None:
    """At once, and what is set no more is learnt again."""
    learner = Learner(Given(byte_s=1.0))
    learner.give(Given(depth=7.0))
    assert learner.pace == Pace(BYTE_S, 7.0, math.inf)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_times_that_cannot_be_are_left_out(seconds: float) -> None:
    """Clocks differ between machines."""
    learner = Learner()
    learner.note(Sample(seconds, 9_000, 9_000))
    assert learner.samples == 0
