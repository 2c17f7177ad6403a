"""Workloads out of recorded sessions."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from loadgen.workloads.arrivals import arrange, fitting
from loadgen.workloads.profiles import PROFILES
from loadgen.workloads.synthetic import generate_whole
from loadgen.workloads.trace import Fact, Trace, TraceRequest, Trigger, cut, names


def request(name: str, at: float, blocks: tuple[tuple[int, int], ...], **fields: object) -> TraceRequest:
    """A request of as many tokens as its blocks hold."""
    session, _, _ = name.partition("/")
    count = sum(length for _, length in blocks) * 10
    made = TraceRequest(
        id=name,
        session=session,
        turn=0,
        arrival_s=at,
        input=count,
        output=5,
        blocks=blocks,
        duration_s=1.0,
    )
    return replace(made, **fields)  # type: ignore[arg-type]


# Session a has a fork f; a and b have blocks 0 and 1 in common; blocks 0 to 2 are a's system prompt.
RECORDED = Trace(
    "recorded",
    10,
    [
        request("a/0", 0, ((0, 4),), system=30, trigger=Trigger.USER),
        request("a/1", 3000, ((0, 8),), system=30, turn=1, parent="a/0", gap_s=2999.0),
        request("f/0", 3100, ((0, 6), (100, 3)), system=30, turn=1, parent="a/0", gap_s=3099.0),
        request("b/0", 5000, ((0, 2), (200, 3))),
        request("b/1", 7000, ((0, 2), (200, 9)), turn=1, parent="b/0", gap_s=1999.0),
    ],
)


@pytest.fixture(scope="module")
def arranged() -> Trace:
    return arrange(RECORDED, rate=0.5, seconds=20_000, seed=3)


def test_the_rate_is_met_from_the_start(arranged: Trace) -> None:
    """Sessions of an hour are in their middle at time 0: the first ten minutes are like all others."""
    arrivals = [request.arrival_s for request in arranged.requests]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] >= 0
    assert arrivals[-1] < 20_000
    assert len(arrivals) / 20_000 == pytest.approx(0.5, rel=0.05)
    assert sum(at < 3000 for at in arrivals) / 3000 == pytest.approx(0.5, rel=0.12)
    assert any(request.turn and request.parent is None for request in arranged.requests)


def test_times_within_a_session_are_kept(arranged: Trace) -> None:
    """Parents, gaps and offsets are as recorded, forks included; a parent outside the window is none."""
    known = {request.id: request for request in arranged.requests}
    recorded = {request.id: request for request in RECORDED.requests}
    forks = 0
    for request in arranged.requests:
        before = recorded[request.id.split("@")[0]]
        if request.parent is None:
            assert request.gap_s is None
            continue
        parent = known[request.parent]
        assert request.id.split("@")[1] == parent.id.split("@")[1]
        assert parent.id.split("@")[0] == before.parent
        assert request.gap_s == before.gap_s
        offset = before.arrival_s - recorded[before.parent or ""].arrival_s
        assert request.arrival_s - parent.arrival_s == pytest.approx(offset)
        forks += request.session.startswith("f")
    assert forks > 100


def test_copies_share_what_sessions_share(arranged: Trace) -> None:
    """Of two copies, the system prompt and what two recorded sessions had in common agree, and nothing else."""
    first = [request for request in arranged.requests if request.id.startswith("a/0")]
    other = [request for request in arranged.requests if request.id.startswith("b/0")]
    assert {cut(request.blocks, 0, 3) for request in first} == {((0, 3),)}
    assert {cut(request.blocks, 0, 2) for request in other} == {((0, 2),)}
    own = [name for request in first for name in names(cut(request.blocks, 3, 4))]
    own += [name for request in other for name in names(cut(request.blocks, 2, 5))]
    assert len(set(own)) == len(own) == len(first) + 3 * len(other) > 100


def test_a_copy_reuses_itself_as_recorded(arranged: Trace) -> None:
    """Within a copy, prompts share the blocks that they shared in the recording, a fork with its parent's too."""
    known = {request.id: request for request in arranged.requests}
    for request in arranged.requests:
        if request.parent is not None and request.session.startswith("f"):
            assert cut(request.blocks, 0, 4) == known[request.parent].blocks


def test_the_draws_do_not_grow_with_the_time_that_a_session_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a session that pauses for ten years, both ends come at their rate, for about a draw a request."""

    class Counted(random.Random):
        draws = 0

        def expovariate(self, lambd: float = 1.0) -> float:
            Counted.draws += 1
            assert Counted.draws < 10_000
            return super().expovariate(lambd)

    monkeypatch.setattr("loadgen.workloads.arrivals.random.Random", Counted)
    years = [request("a/0", 0, ((0, 4),)), request("a/1", 3e8, ((0, 8),), turn=1, parent="a/0")]
    short = [request("b/0", 10, ((50, 2),)), request("b/1", 40, ((50, 3),), turn=1, parent="b/0")]
    recorded = replace(RECORDED, requests=[years[0], *short, years[1]])
    arranged = arrange(recorded, rate=1, seconds=2000, seed=1).requests
    counts = [sum(one.id.startswith(name) for one in arranged) for name in ("a/0", "a/1", "b/0", "b/1")]
    assert counts == pytest.approx([500] * 4, rel=0.15)
    assert all(one.parent is None for one in arranged if one.id.startswith("a"))
    assert Counted.draws < 2 * len(arranged)


def test_equal_seeds_give_equal_workloads(arranged: Trace) -> None:
    """A workload is a function of its arguments."""
    assert arrange(RECORDED, rate=0.5, seconds=20_000, seed=3).requests == arranged.requests
    assert arrange(RECORDED, rate=0.5, seconds=20_000, seed=4).requests != arranged.requests


def test_what_does_not_fit_goes_with_its_descendants() -> None:
    """A request that is too long takes all with it that went on from it, forks too, and they are counted."""
    short = request("b/2", 8000, ((0, 2), (300, 1)), parent="b/1")
    recorded = replace(RECORDED, requests=[*RECORDED.requests, short])
    for most, left in ((54, ["a/0"]), (60, ["a/0", "b/0"]), (115, [r.id for r in recorded.requests])):
        trace, gone = fitting(recorded, most)
        assert ([request.id for request in trace.requests], gone) == (left, len(recorded.requests) - len(left))


def test_the_rate_is_of_what_fits() -> None:
    """What is left out does not lower the rate."""
    arranged = arrange(RECORDED, rate=0.5, seconds=20_000, seed=3, max_input=60)
    assert len(arranged.requests) / 20_000 == pytest.approx(0.5, rel=0.05)
    assert all(request.turn == 0 for request in arranged.requests)


def test_generated_sessions_can_be_arranged() -> None:
    """Sessions of a profile, sampled, keep their lengths and come at the rate that was asked for."""
    recorded = generate_whole(PROFILES["paper-trace-1"], sessions=1500, rate=1, seed=0)
    arranged = arrange(recorded, rate=8, seconds=900, seed=1).requests
    assert len(arranged) / 900 == pytest.approx(8, rel=0.15)
    mean, before = (sum(r.input for r in requests) / len(requests) for requests in (arranged, recorded.requests))
    assert mean == pytest.approx(before, rel=0.1)


@pytest.mark.parametrize(
    ("trace", "arguments", "words"),
    [
        (RECORDED, {"rate": 0}, "rate 0: expected a positive number"),
        (RECORDED, {"seconds": float("inf")}, "seconds inf: expected a positive number"),
        (RECORDED, {"max_input": 10}, "has no requests of at most 10 tokens"),
        (Trace("t", 10, [], frozenset({Fact.SESSIONS})), {}, "trace t has no requests"),
        (Trace("t", 10, RECORDED.requests, frozenset()), {}, "does not say which requests belong to a session"),
    ],
)
def test_what_cannot_be_arranged_is_named(trace: Trace, arguments: dict[str, float], words: str) -> None:
    """What makes a workload impossible is an error that says it."""
    with pytest.raises(ValueError, match=words):
        arrange(trace, **{"rate": 1, "seconds": 10, "seed": 0, **arguments})  # type: ignore[arg-type]
