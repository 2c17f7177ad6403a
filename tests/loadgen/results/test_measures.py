"""The measures of a run are those that the paper defines, computed by hand here for a few requests."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from loadgen.results.measures import (
    Measures,
    busy,
    imbalances,
    load_measures,
    loads,
    mean_imbalance,
    measure,
    quantiles,
    slo_of,
    stickiness,
)
from loadgen.results.records import Row, RunInfo, Slo


def row(**given: Any) -> Row:
    """A request that met its service level, with what is given changed."""
    number = given.pop("number", 0)
    due = given.get("due_s", 0.0)
    fields: dict[str, Any] = {
        "request": f"r{number}",
        "session": "s",
        "turn": 0,
        "due_s": due,
        "sent_s": due,
        "first_s": due + 0.5,
        "end_s": due + 1.0,
        "input": 1_000,
        "output": 100,
        "produced": 100,
        "local": 600,
        "fetched": 200,
        "instance": "a",
        "reason": "follow-up",
    }
    return Row(**{**fields, **given})


def info(**given: Any) -> RunInfo:
    """A run of two instances whose window is two minutes long and begins after one."""
    fields: dict[str, Any] = {
        "kind": "simulate",
        "label": "smetric",
        "policy": "smetric",
        "workload": "w",
        "rate": 1.0,
        "seed": 0,
        "instances": ["a", "b"],
        "window": (60.0, 180.0),
    }
    return RunInfo(**{**fields, **given})


def test_only_requests_due_in_the_window_count() -> None:
    """Warm-up and what comes after the window is in no figure of the requests, wherever it ended."""
    rows = [row(due_s=59.9), row(due_s=60.0), row(due_s=179.9, end_s=200.0, first_s=180.0), row(due_s=180.0)]
    measures = measure(rows, info(), Slo(tpot_s=1.0))
    assert measures.requests == 2
    assert measures.requests_per_s == pytest.approx(2 / 120)
    assert measures.tps_slo == pytest.approx(200 / 120)
    assert measures.tps_slo_all == pytest.approx(2_200 / 120)


def test_what_failed_or_missed_the_service_level_gives_no_tokens() -> None:
    """Late first tokens, slow tokens, errors and unfinished requests count as requests and not for TPS within SLO."""
    rows = [
        row(due_s=70.0),
        row(due_s=70.0, first_s=71.2, end_s=71.3),  # 1.2 s > 1.0 s + 1,000 tokens of 0.1 ms
        row(due_s=70.0, end_s=80.0),  # 96 ms a token
        row(due_s=70.0, error="unfinished", end_s=None),
        row(due_s=70.0, error="HTTP 503", first_s=None, end_s=None, produced=0),
    ]
    measures = measure(rows, info())
    assert (measures.requests, measures.failed) == (5, 2)
    assert measures.tps_slo == pytest.approx(100 / 120)
    assert measures.tps == pytest.approx(300 / 120)
    assert measures.slo_share == pytest.approx(1 / 5)


def test_the_service_level_is_the_runs_own() -> None:
    """A run's settings say by which service level it is judged; what they leave out is the default."""
    strict = info(settings={"slo_tpot_s": 0.001, "model": "30b-h20"})
    assert slo_of(strict) == Slo(tpot_s=0.001)
    assert measure([row(due_s=70.0)], strict).slo_share == 0.0
    assert measure([row(due_s=70.0)], strict, Slo()).slo_share == 1.0


def test_hits_are_shares_of_prompt_tokens() -> None:
    """Local and fetched tokens divide by the prompts of those requests that tell; long prompts weigh more."""
    rows = [row(due_s=70.0), row(due_s=70.0, input=3_000, local=0, fetched=1_000), row(due_s=70.0, local=None)]
    measures = measure(rows, info())
    assert measures.local == pytest.approx(600 / 4_000)
    assert measures.fetched == pytest.approx(1_200 / 4_000)
    assert measures.reuse == pytest.approx(1_800 / 4_000)


def test_what_the_rows_cannot_answer_is_nan() -> None:
    """A live peer that tells neither instance nor cached tokens still has its tokens and times measured."""
    measures = measure([row(due_s=70.0, local=None, fetched=None, instance=None, reason=None)], info())
    assert measures.tps_slo == pytest.approx(100 / 120)
    assert measures.ttft.p50 == pytest.approx(0.5)
    unknown = [measures.local, measures.fetched, measures.reuse, measures.imbalance, measures.sticky_first]
    assert all(math.isnan(value) for value in unknown)
    assert measures.per_instance == {"a": 0, "b": 0}
    assert measures.reasons == {}


def test_engines_without_a_global_tier_have_their_reuse_measured() -> None:
    """Where nothing says what was fetched, reuse is what was local."""
    measures = measure([row(due_s=70.0, fetched=None)], info())
    assert math.isnan(measures.fetched)
    assert measures.reuse == measures.local == pytest.approx(0.6)


def test_an_empty_run_is_measured_too() -> None:
    """No rows, no exception: counts are zero and ratios nan."""
    measures = measure([], info())
    assert (measures.requests, measures.failed, measures.tps_slo) == (0, 0, 0.0)
    assert math.isnan(measures.slo_share)
    assert math.isnan(measures.imbalance_30s.p99)


def test_loads_count_prompts_at_their_first_token_and_replies_as_they_come() -> None:
    """A reply over a window's edge is divided by time; work due in the warm-up counts where it is done."""
    rows = [row(due_s=50.0, first_s=90.0, end_s=150.0, produced=60, instance="b")]
    assert loads(rows, info(), 60.0) == [[0, 1_000 + 30], [0, 30]]
    assert loads(rows, info(), 60.0, computed=True) == [[0, 200 + 30], [0, 30]]


def test_loads_leave_out_what_was_done_outside_of_the_window() -> None:
    """Tokens before the window and after its last whole part are nobody's load."""
    rows = [row(due_s=10.0), row(first_s=50.0, end_s=70.0, produced=20), row(first_s=179.0, end_s=199.0, produced=20)]
    assert loads(rows, info(), 60.0) == [[10, 0], [1_001, 0]]


def test_replies_are_the_decoders_load() -> None:
    """With disaggregated prefill, the prompt is one instance's load and the reply another's."""
    rows = [row(due_s=70.0, decoder="b")]
    assert loads(rows, info(), 60.0) == [[1_000, 100], [0, 0]]


def test_unfinished_requests_load_as_far_as_they_got() -> None:
    """A prompt that was computed counts though its reply never ended; one that never began does not."""
    rows = [row(due_s=70.0, end_s=None, error="unfinished"), row(due_s=70.0, first_s=None, end_s=None)]
    assert loads(rows, info(), 60.0) == [[1_000, 0], [0, 0]]


def test_imbalance_is_hottest_over_mean() -> None:
    """Idle instances pull the mean down, and windows in which nothing happened do not count."""
    assert imbalances([[30, 10], [0, 0], [20, 20]]) == [1.5, 1.0]
    rows = [row(due_s=70.0, instance="a"), row(due_s=130.0, instance="a"), row(due_s=130.0, instance="b")]
    measures = measure(rows, info())
    assert measures.imbalance == pytest.approx((2.0 + 1.0) / 2)
    assert measures.imbalance_30s.max == pytest.approx(2.0)


def test_busy_instances_are_those_that_requests_stay_at() -> None:
    """Request-seconds of each window, a request in every window that it spans; what never ended is not known."""
    rows = [
        row(sent_s=60.0, end_s=66.0),
        row(sent_s=61.0, end_s=62.0, instance="b"),
        row(sent_s=62.0, end_s=None, error="unfinished"),
    ]
    table = busy(rows, info(window=(60.0, 72.0)), 5.0)
    assert table == [pytest.approx([5.0, 1.0]), pytest.approx([1.0, 0.0]), [0.0, 0.0]]


def test_windows_may_count_by_what_was_done_in_them() -> None:
    """A window with little in it says little: the mean counts it by its load. Instances that take turns at being busy
    are not balanced, though their totals are equal; nothing at all is no imbalance of nothing."""
    assert mean_imbalance([[4.0, 0.0]]) == pytest.approx(2.0)
    assert mean_imbalance([[4.0, 0.0], [0.0, 0.0], [4.0, 4.0]]) == pytest.approx((4 + 4) / (2 + 4))
    assert mean_imbalance([[5.0, 0.0], [0.0, 5.0]]) == pytest.approx(2.0)
    assert mean_imbalance([[5.0, 0.0], [5.0, 5.0]]) == pytest.approx((5 + 5) / 7.5)
    assert math.isnan(mean_imbalance([[0.0, 0.0]]))


def test_stickiness_tells_the_first_turn_from_the_turn_before() -> None:
    """A session that moves once comes back to where it was before, not to where it began."""
    places = ["a", "b", "b", "b"]
    rows = [row(due_s=60.0 + turn, turn=turn, instance=place) for turn, place in enumerate(places)]
    first, before = stickiness(rows, (60.0, 180.0))
    assert first == 0.0
    assert before == pytest.approx(2 / 3)


def test_stickiness_knows_first_turns_of_the_warm_up() -> None:
    """A follow-up in the window is compared with turns before the window; a compaction begins anew."""
    rows = [row(due_s=10.0, instance="b"), row(due_s=70.0, turn=1, instance="b"), row(due_s=80.0, instance="a")]
    rows.append(row(due_s=90.0, turn=1, instance="a"))
    assert stickiness(rows, (60.0, 180.0)) == (1.0, 1.0)


def test_stickiness_is_that_of_the_window() -> None:
    """Follow-ups that were due in the warm-up, or after the window, are not counted."""
    rows = [
        row(due_s=time, turn=turn, instance=place)
        for turn, (time, place) in enumerate(zip((10.0, 50.0, 70.0, 190.0), ("a", "b", "a", "b"), strict=True))
    ]
    assert stickiness(rows, (60.0, 180.0)) == (1.0, 0.0)


def test_sessions_are_not_mixed() -> None:
    """Stickiness compares requests of one session only."""
    rows = [row(due_s=60.0, instance="a", session="x"), row(due_s=61.0, turn=1, instance="a", session="y")]
    assert all(math.isnan(share) for share in stickiness(rows, (60.0, 180.0)))


def test_quantiles_are_values_that_occurred() -> None:
    """Nearest rank: of a hundred values, p99 is the 99th."""
    points = quantiles(range(1, 101))
    assert (points.p50, points.p75, points.p90, points.p95, points.p99, points.max) == (50, 75, 90, 95, 99, 100)
    assert points.mean == 50.5
    assert quantiles([1, 2, 3]).p50 == 2


def test_measures_survive_json() -> None:
    """A sweep's line gives the same measures back, nan as null included."""
    for rows in ([row(due_s=70.0), row(due_s=80.0, turn=1, instance="b")], []):
        measures = measure(rows, info())
        back = load_measures(msgspec.json.decode(msgspec.json.encode(measures)))
        assert isinstance(back, Measures)
        assert repr(back) == repr(measures)  # nan is not equal to itself


def test_a_window_without_length_is_refused() -> None:
    """Tokens a second of no seconds have no meaning."""
    with pytest.raises(ValueError, match="no length"):
        measure([], info(window=(5.0, 5.0)))
