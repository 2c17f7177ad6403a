"""Synthetic sessions: the statistics that they are made for, and what makes them sessions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import fmean

import pytest

from loadgen.study.findings import Study
from loadgen.study.measures import study
from loadgen.workloads.profiles import PROFILES, Spread, lognormal, mean_requests, mean_whole
from loadgen.workloads.synthetic import generate, generate_whole
from loadgen.workloads.trace import Trace, Trigger, common, cut, length, names

PAPER = PROFILES["paper-trace-1"]


@pytest.fixture(scope="module")
def trace() -> Trace:
    return generate(PAPER, rate=8, seconds=2700, seed=1)


@pytest.fixture(scope="module")
def studied(trace: Trace) -> Study:
    return study(trace, 11)


def test_reuse_is_that_of_the_paper(studied: Study) -> None:
    """Reuse, its split and its intervals are those of the paper's first trace, within a stated tolerance."""
    assert studied.reuse is not None
    assert studied.intervals is not None
    assert studied.reuse.ratio > 0.80
    assert studied.reuse.within == pytest.approx(0.67, abs=0.03)
    assert studied.reuse.system == pytest.approx(0.18, abs=0.03)
    assert studied.intervals.soon == pytest.approx(0.90, abs=0.03)


def test_lengths_are_those_of_the_trial(studied: Study) -> None:
    """Prompts and replies are about as long as in the trial that the constants come from."""
    assert studied.input.p50 == pytest.approx(38_000, rel=0.15)
    assert studied.input.p90 == pytest.approx(94_000, rel=0.05)
    assert studied.input.p99 == pytest.approx(123_000, rel=0.02)
    assert studied.output.mean == pytest.approx(440, rel=0.05)
    assert studied.triggers is not None
    assert studied.triggers["agent"] > studied.triggers["user"] > studied.triggers["compaction"] > 0


def test_balance_is_that_of_the_paper() -> None:
    """At the paper's 43 requests a minute and instance, fewest-in-flight dispatch leaves the imbalance of figure 9."""
    balance = study(generate(PAPER, rate=22.9, seconds=600, seed=0), 32).balance
    assert balance is not None
    assert 1.5 <= balance.median <= 1.9
    assert balance.worst < 2.4


def test_claude_code_is_as_recorded() -> None:
    """Whole sessions of the profile have the turns, prompts, replies and reuse of the recorded ones."""
    studied = study(generate_whole(PROFILES["claude-code"], sessions=400, rate=3, seed=1))
    assert studied.turns is not None
    assert studied.append is not None
    assert studied.reuse is not None
    assert studied.intervals is not None
    assert studied.turns.p50 == pytest.approx(45, rel=0.15)
    assert studied.turns.p90 == pytest.approx(155, rel=0.15)
    assert studied.input.p50 == pytest.approx(105_000, rel=0.1)
    assert studied.input.p90 == pytest.approx(236_000, rel=0.12)
    assert (studied.output.p50, studied.output.p90) == (pytest.approx(216, rel=0.05), pytest.approx(899, rel=0.05))
    assert (studied.append.p50, studied.append.mean) == (pytest.approx(653, rel=0.05), pytest.approx(1773, rel=0.1))
    assert studied.reuse.ratio == pytest.approx(0.963, abs=0.01)
    assert studied.intervals.soon == pytest.approx(0.89, abs=0.03)


def test_chat_reuses_less() -> None:
    """Chat reuses 54 to 62 % of its prompts, as the paper says."""
    reuse = study(generate(PROFILES["chat"], rate=8, seconds=1800, seed=1, block_size=16)).reuse
    assert reuse is not None
    assert 0.54 <= reuse.ratio <= 0.62


def test_bailian_coder_shares_more_system_prompts() -> None:
    """In the paper's second trace a fifth of the reuse is system prompt."""
    reuse = study(generate(PROFILES["bailian-coder"], rate=8, seconds=1800, seed=1)).reuse
    assert reuse is not None
    assert reuse.ratio > 0.80
    assert reuse.system == pytest.approx(0.20, abs=0.03)


def test_equal_seeds_give_equal_traces() -> None:
    """A trace is a function of its arguments."""
    one, again, other = (generate(PAPER, rate=1, seconds=200, seed=seed).requests for seed in (5, 5, 6))
    assert one == again
    assert one != other


def test_sessions_of_a_seed_do_not_depend_on_the_rate() -> None:
    """The n-th session does the same at every rate, so runs of one seed at two rates can be compared."""
    slow = {r.id: (r.input, r.output, r.gap_s) for r in generate_whole(PAPER, sessions=30, rate=1, seed=2).requests}
    fast = {r.id: (r.input, r.output, r.gap_s) for r in generate_whole(PAPER, sessions=30, rate=9, seed=2).requests}
    assert slow == fast


def test_the_rate_is_met_from_the_start() -> None:
    """The first minutes have as many requests as the last: sessions in their middle are there from time 0."""
    counts = [0, 0]
    for seed in range(3):
        for request in generate(PAPER, rate=5, seconds=1800, seed=seed).requests:
            counts[request.arrival_s >= 900] += 1
    assert counts[0] / 2700 == pytest.approx(5, rel=0.1)
    assert counts[1] / 2700 == pytest.approx(5, rel=0.1)


def test_requests_of_a_session_are_counted_right() -> None:
    """The exact mean that turns a rate into arrivals is what sessions come to."""
    drawn = generate_whole(PAPER, sessions=2000, rate=8, seed=0)
    assert len(drawn.requests) / 2000 == pytest.approx(mean_requests(PAPER), rel=0.05)


def test_arrivals_follow_gaps(trace: Trace) -> None:
    """A request arrives its gap after its parent's nominal end, and after its parent in the trace."""
    known = {}
    for request in trace.requests:
        if request.parent is not None:
            parent = known[request.parent]
            assert parent.duration_s is not None
            assert request.gap_s is not None
            assert request.arrival_s == pytest.approx(parent.arrival_s + parent.duration_s + request.gap_s)
        known[request.id] = request


def test_follow_ups_go_on_from_their_parent(trace: Trace) -> None:
    """A prompt begins with its parent's prompt and reply, but for 1 % of the turns whose history was rewritten."""
    known = {request.id: request for request in trace.requests}
    broken = followed = 0
    for request in trace.requests:
        parent = known.get(request.parent or "")
        if parent is None or parent.session != request.session or request.trigger is Trigger.COMPACTION:
            continue
        followed += 1
        assert request.turn == parent.turn + 1
        assert request.history == parent.input + parent.output
        assert request.input > request.history
        broken += common(request.blocks, parent.blocks) < length(parent.blocks)
    assert broken / followed == pytest.approx(0.01, abs=0.003)


def test_blocks_of_a_reply_have_one_name(trace: Trace) -> None:
    """The next two prompts of a session agree on the blocks that a reply filled; a name stands for its whole prefix."""
    before: dict[int, int] = {}
    for request in trace.requests[::7]:
        assert length(request.blocks) == request.input // trace.block_size
        last = -1
        for name in names(request.blocks):
            assert before.setdefault(name, last) == last
            last = name


def test_compactions_keep_the_system_prompt(trace: Trace) -> None:
    """After a compaction the turn is 0 and the whole blocks of the system prompt are all that is left."""
    known = {request.id: request for request in trace.requests}
    seen = 0
    for request in trace.requests:
        parent = known.get(request.parent or "")
        if request.trigger is Trigger.COMPACTION and parent is not None:
            seen += 1
            assert (request.turn, request.history) == (0, 0)
            assert common(request.blocks, parent.blocks) == request.system // trace.block_size
            assert request.input >= request.system + PAPER.summary
    assert seen > 50


def test_forks_carry_history(trace: Trace) -> None:
    """A fork goes on from a request of another session with 60 to 100 % of its context, at a turn above 0."""
    known = {request.id: request for request in trace.requests}
    shares = []
    for request in trace.requests:
        parent = known.get(request.parent or "")
        if parent is not None and parent.session != request.session:
            assert request.turn > 0
            context = parent.input + parent.output
            shares.append((common(request.blocks, parent.blocks) + 1) * trace.block_size / context)
            assert common(request.blocks, parent.blocks) * trace.block_size <= context
    assert len(shares) > 300
    assert min(shares) >= 0.59
    assert fmean(shares) == pytest.approx(0.8, abs=0.04)


def test_shared_prompts_are_shared_in_whole_blocks(trace: Trace) -> None:
    """The first requests of sessions with one system prompt have its whole blocks in common, and nothing after."""
    system = 14_500
    whole = system // trace.block_size
    first = [r for r in trace.requests if r.turn == 0 and r.system == system and r.trigger is Trigger.USER]
    heads = {cut(request.blocks, 0, whole) for request in first}
    tails = [cut(request.blocks, whole, whole + 1) for request in first if length(request.blocks) > whole]
    assert len(heads) == 1
    assert len(set(tails)) == len(tails) > 100


def test_contexts_are_never_exceeded(trace: Trace) -> None:
    """Prompt and reply fit the context."""
    assert max(request.input + request.output for request in trace.requests) <= PAPER.context


def test_blocks_may_be_of_any_size() -> None:
    """Another block size changes names and nothing else."""
    fine, coarse = (generate_whole(PAPER, sessions=30, rate=1, seed=1, block_size=size) for size in (16, 64))
    assert {r.id: (r.input, r.output) for r in fine.requests} == {r.id: (r.input, r.output) for r in coarse.requests}
    assert all(length(request.blocks) == request.input // 16 for request in fine.requests)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rate": -1.0}, "rate -1: expected a positive number"),
        ({"rate": float("nan")}, "rate nan: expected a positive number"),
        ({"seconds": 0.0}, "seconds 0: expected a positive number"),
        ({"block_size": 0}, "block size 0: expected a positive number"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, float], words: str) -> None:
    """An impossible number is an error that says which."""
    with pytest.raises(ValueError, match=words):
        generate(PAPER, **{"rate": 1.0, "seconds": 10.0, "seed": 0, **arguments})  # type: ignore[arg-type]


def test_the_demos_sessions_are_all_alike() -> None:
    """Six requests each, one system prompt, of which tools are a part, and every follow-up goes on from the one before:
    what `make run` shows depends on the policy alone."""
    trace = generate_whole(PROFILES["demo"], sessions=5, rate=1, seed=0)
    assert Counter(one.session for one in trace.requests) == dict.fromkeys([f"s{n}" for n in range(5)], 6)
    assert len({one.blocks[0] for one in trace.requests}) == 1
    assert {(one.system, one.tools) for one in trace.requests} == {(PROFILES["demo"].private, PROFILES["demo"].tools)}
    parents = {one.id: one for one in trace.requests}
    for one in trace.requests:
        if one.parent:
            assert one.history == parents[one.parent].input + parents[one.parent].output


@pytest.mark.parametrize(("context", "words"), [(14_500, "the system prompt of 14500"), (20_000, "the longest reply")])
def test_contexts_must_hold_the_system_prompt(context: int, words: str) -> None:
    """A context that is too small is an error that says for what."""
    with pytest.raises(ValueError, match=words):
        generate(replace(PAPER, context=context), rate=1, seconds=10, seed=0)


def test_means_of_counts_are_exact() -> None:
    """The mean of a rounded, cut-off distribution is the sum of its tail."""
    assert mean_whole(lognormal(8, 1e-9, most=400)) == pytest.approx(8)
    assert mean_whole(Spread(((0.5, 2, 1e-9), (0.5, 30, 1e-9)), most=10)) == pytest.approx(6)
