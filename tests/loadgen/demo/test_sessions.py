"""Synthetic sessions are what they claim to be; the figures of a run are what their names say."""

from __future__ import annotations

import json
import math

import pytest

from loadgen.demo import sessions
from loadgen.demo.agents import Record
from loadgen.demo.summary import percentile, summarise


def test_sessions_depend_on_their_arguments_alone() -> None:
    """Equal arguments give equal sessions; another seed gives others; more sessions change none."""
    one = sessions.sessions(3, 4, 10_000, seed=7)
    assert sessions.sessions(3, 4, 10_000, seed=7) == one
    assert sessions.sessions(5, 4, 10_000, seed=7)[:3] == one
    assert sessions.sessions(3, 4, 10_000, seed=8) != one


def test_sessions_share_the_system_prompt_and_nothing_else() -> None:
    """System prompt and tools, of the length asked for, are common to all; what follows differs at once."""
    made = sessions.sessions(4, 2, 40_000, seed=1)
    assert len({(one.system, json.dumps(one.tools)) for one in made}) == 1
    assert len(made[0].system) + len(json.dumps(made[0].tools)) == pytest.approx(40_000, rel=0.01)
    assert len({one.turns[0].text[:30] for one in made}) == 4


def test_turns_have_the_lengths_and_pauses_asked_for() -> None:
    """Turns bring about `turn_bytes`, pauses average `think_s`, and every n-th turn compacts, the first never."""
    made = sessions.sessions(40, 9, 100, seed=2, turn_bytes=2_000, think_s=0.5, compact_every=4)
    turns = [turn for one in made for turn in one.turns]
    assert sum(len(turn.text) for turn in turns) / len(turns) == pytest.approx(2_000, rel=0.1)
    assert all(1_000 <= len(turn.text) <= 3_000 for turn in turns)
    pauses = [turn.think_s for one in made for turn in one.turns[1:]]
    assert sum(pauses) / len(pauses) == pytest.approx(0.5, rel=0.2)
    assert max(pauses) <= 2.0
    assert {one.turns[0].think_s for one in made} == {0.0}
    assert [[place for place, turn in enumerate(one.turns) if turn.compact] for one in made] == [[4, 8]] * 40


@pytest.mark.parametrize("wrong", [{"count": 0}, {"turns": 0}, {"system_bytes": -1}, {"turn_bytes": 0}])
def test_impossible_workloads_are_refused(wrong: dict[str, int]) -> None:
    """A workload without sessions, turns or text is an error, not an empty run."""
    with pytest.raises(ValueError, match="positive"):
        sessions.sessions(**({"count": 1, "turns": 1} | wrong))


def record(instance: str, started: float, latency: float, session: str = "s", turn: int = 0, **more: object) -> Record:
    return Record(
        session=session,
        turn=turn,
        started_s=started,
        status=200,
        instance=instance,
        latency_s=latency,
        **more,  # type: ignore[arg-type]
    )


def test_imbalance_is_the_busiest_over_the_mean_in_time() -> None:
    """In windows of 5 s: one of two instances busy gives 2.0, both alike 1.0, and idle windows do not count."""
    alone, both = record("a", 0, 4), [record("a", 100, 4), record("b", 101, 4)]
    assert summarise([alone], ["a", "b"]).imbalance == pytest.approx(2.0)
    assert summarise(both, ["a", "b"]).imbalance == pytest.approx(1.0)
    assert summarise([alone, *both], ["a", "b"]).imbalance == pytest.approx((4 + 4) / (2 + 4))


def test_imbalance_sees_windows_and_not_totals() -> None:
    """Two instances that take turns at being busy are not balanced, though their totals are equal; a request counts in
    every window that it spans."""
    assert summarise([record("a", 0, 5), record("b", 5, 5)], ["a", "b"]).imbalance == pytest.approx(2.0)
    assert summarise([record("a", 0, 10), record("b", 5, 5)], ["a", "b"]).imbalance == pytest.approx((5 + 5) / 7.5)


def test_a_summary_counts_what_was_served() -> None:
    """Hits and times come from served requests; failed ones are counted; idle instances are listed."""
    records = [
        record("a", 0, 1, turn=0, prompt_tokens=100, cached_tokens=0, ttft_s=1.0),
        record("a", 1, 1, turn=1, prompt_tokens=100, cached_tokens=90, ttft_s=0.1),
        record("b", 2, 1, turn=2, prompt_tokens=200, cached_tokens=100, ttft_s=0.5),
        record("b", 3, 1, turn=3, error="no"),
    ]
    summary = summarise(records, ["a", "b", "c"])
    assert (summary.requests, summary.failed) == (4, 1)
    assert summary.hit_ratio == pytest.approx(190 / 400)
    assert summary.stickiness == pytest.approx(1 / 2)
    assert (summary.ttft_p50, summary.ttft_p90) == (0.5, 1.0)
    assert summary.per_instance == {"a": 2, "b": 1, "c": 0}


def test_an_empty_run_has_no_figures() -> None:
    """Where nothing was served, ratios and times are nan, not an error and not zero."""
    summary = summarise([], ["a"])
    assert (summary.requests, summary.failed) == (0, 0)
    assert all(map(math.isnan, (summary.hit_ratio, summary.stickiness, summary.imbalance, summary.ttft_p50)))
    assert math.isnan(percentile([], 0.5))
