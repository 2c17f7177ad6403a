"""The simulated cluster: every request is served once, in its time, and all accounts balance in the end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from loadgen.engine.timing import PROFILES
from loadgen.results.records import Row
from loadgen.simulation import ImpossibleScenario, info, label, simulate
from loadgen.simulation.cluster import DRAIN_S, IDEAL_TPOT_S, _Cluster
from loadgen.simulation.product_router import DECODER, POOL
from loadgen.simulation.scenario import Fetch, IndexView, Layout, Scenario
from loadgen.workloads.trace import Dispatch, Trace
from tests.support.simulation_traces import SIZE, conversations, nothing_named, request, trace

SMALL = Scenario(instances=4, local_tokens=40_000, warmup_s=0.0, measure_s=60.0)
TALK = conversations(sessions=24, turns=6)
H20 = PROFILES["30b-h20"]


def run(scenario: Scenario, workload: Trace = TALK) -> tuple[_Cluster, list[Row]]:
    cluster = _Cluster(scenario, workload)
    return cluster, cluster.run(lambda now: None)


def by_id(rows: list[Row]) -> dict[str, Row]:
    return {row.request: row for row in rows}


def local_keys(cluster: _Cluster, instance: str) -> set[int]:
    cache = cluster._instances[instance]._cache
    return {key for key in range(cluster._keys.count) if cache.prefix(np.array([key], np.int32))[0]}


def indexed(cluster: _Cluster) -> dict[str, set[int]]:
    holders = cluster._gateway._index._pools[POOL]
    held: dict[str, set[int]] = {name: set() for name in cluster._instances}
    for shard in holders._shards:
        for key, mask in shard.items():
            for name in holders._names(mask):
                held[name].add(key)
    return held


scenarios = pytest.mark.parametrize(
    "scenario",
    [
        SMALL,
        replace(SMALL, policy="bailian", fetch=Fetch.ASYNC),
        replace(SMALL, policy="least-loaded", global_ratio=0.3),
        replace(SMALL, policy="random", global_ratio=0.0, dispatch=Dispatch.TRACE),
        replace(SMALL, policy="lmetric", local_tokens=6_000, instances=8, fetch=Fetch.ASYNC, global_ratio=20.0),
        replace(SMALL, layout=Layout.DISAGGREGATED),
        replace(SMALL, block_size=64, batch_tokens=2048, long_prefill_threshold=512),
        replace(SMALL, index=IndexView.NEVER_EVICTING),
        replace(SMALL, index=IndexView.ROUTED),
    ],
    ids=lambda scenario: f"{label(scenario)}-{scenario.fetch}-{scenario.layout}-{scenario.index}",
)


@scenarios
def test_all_accounts_balance(scenario: Scenario) -> None:
    """When every request has ended, no instance has load, no block is used or promised, and each request has one row
    whose times are in order."""
    cluster, rows = run(scenario)
    assert Counter(row.request for row in rows) == Counter(one.id for one in TALK.requests)
    names = [*cluster._instances, DECODER]
    assert cluster._gateway._router._loads.view(POOL, names) == ([0] * len(names), [0] * len(names))
    assert not cluster._tickets
    for instance in cluster._instances.values():
        assert not instance.waiting
        assert not instance.running
        assert instance._promised == 0
        assert instance._cache.free == instance._cache.capacity
    for row in rows:
        assert row.ok
        assert row.status == 200
        assert row.first_s is not None
        assert row.end_s is not None
        assert row.due_s <= row.sent_s < row.first_s <= row.end_s
        assert row.produced == row.output
        assert row.local is not None
        assert row.fetched is not None
        assert 0 <= row.local + row.fetched < row.input


@pytest.mark.parametrize("local", [40_000, 6_000])
@pytest.mark.parametrize("fetch", Fetch)
def test_an_exact_index_is_exact(local: int, fetch: Fetch) -> None:
    """After a run, with or without evictions, the router's index holds the keys of each cache and no others."""
    cluster, _ = run(replace(SMALL, local_tokens=local, fetch=fetch))
    assert indexed(cluster) == {name: local_keys(cluster, name) for name in cluster._instances}


def test_an_index_without_evictions_holds_more() -> None:
    """What was evicted stays in the index; nothing that is held is missing."""
    cluster, _ = run(replace(SMALL, local_tokens=6_000, index=IndexView.NEVER_EVICTING))
    seen = indexed(cluster)
    for name, keys in seen.items():
        assert keys > local_keys(cluster, name)


def test_a_routed_index_holds_what_was_sent() -> None:
    """Without events the index knows each instance's prompts, and no replies."""
    cluster, rows = run(replace(SMALL, index=IndexView.ROUTED))
    sent: dict[str, set[int]] = {name: set() for name in cluster._instances}
    keys = type(cluster._keys)(TALK, SIZE)
    chains = {one.id: keys.of(one)[: one.input // SIZE].tolist() for one in TALK.requests}
    for row in rows:
        sent[row.instance or ""].update(chains[row.request])
    assert indexed(cluster) == sent


@scenarios
def test_equal_scenarios_give_equal_rows(scenario: Scenario) -> None:
    """Nothing depends on anything but the scenario and its workload."""
    assert simulate(scenario, TALK) == simulate(scenario, TALK)


def test_the_random_policy_spreads() -> None:
    """The router draws new bits for each request: all instances get some."""
    _, rows = run(replace(SMALL, policy="random"))
    assert len({row.instance for row in rows}) == SMALL.instances


def test_follow_ups_come_their_gap_after_the_end() -> None:
    """Thinking clients send exactly their gap after the whole reply before."""
    rows = by_id(simulate(SMALL, TALK))
    for one in TALK.requests:
        row = rows[one.id]
        if one.parent is None:
            assert row.sent_s == row.due_s == one.arrival_s
        else:
            assert row.sent_s == row.due_s == pytest.approx((rows[one.parent].end_s or 0) + (one.gap_s or 0))


def test_recorded_follow_ups_come_at_their_time() -> None:
    """By the trace, a follow-up is sent at its timestamp, or at the end of the one before where that is later."""
    hasty = trace(
        one := request("a", 1.0, 2000, 100),
        early := request("b", 1.5, 2200, 10, after=one),
        request("c", 50.0, 2300, 10, after=early),
    )
    rows = by_id(simulate(replace(SMALL, dispatch=Dispatch.TRACE), hasty))
    assert rows["b"].sent_s == rows["b"].due_s == rows["a"].end_s
    assert rows["c"].sent_s == 50.0


def test_forks_begin_at_their_parents_end() -> None:
    """All that wait for one request are sent after its end, each after its own gap."""
    one = request("a", 1.0, 2000, 100)
    forks = [request(name, 1.0, 2100, after=one, session=name, gap=gap) for name, gap in (("b", 0.0), ("c", 2.5))]
    rows = by_id(simulate(SMALL, trace(one, *forks)))
    assert rows["b"].sent_s == rows["a"].end_s
    assert rows["c"].sent_s == pytest.approx((rows["a"].end_s or 0) + 2.5)


def test_follow_ups_hit_prompt_and_reply() -> None:
    """On the same instance, what is reused of the conversation so far is all of its whole blocks."""
    one = request("a", 0.0, 10 * SIZE, 5 * SIZE, blocks=((0, 10),))
    after = request("b", 1.0, 20 * SIZE, 1, blocks=((0, 20),), after=one, gap=1.0)
    rows = by_id(simulate(replace(SMALL, instances=1), trace(one, after)))
    assert rows["b"].local == rows["b"].predicted == 14 * SIZE  # the reply's last token was never computed


@pytest.mark.parametrize(("prompt", "seconds"), [(1_024, 0.078), (16_384, 1.54), (32_768, 4.6), (65_536, 15.2)])
def test_cold_prefill_as_measured(prompt: int, seconds: float) -> None:
    """Through router, queue and cache, TTFT of a cold prompt is within 5 % of the machine's and of its formula."""
    (row,) = simulate(replace(SMALL, local_tokens=None), trace(request("a", 3.0, prompt, 2)))
    assert row.ttft_s == pytest.approx(seconds, rel=0.05)
    assert row.ttft_s == pytest.approx(0.027 + 4.79e-5 * prompt + 2.77e-9 * prompt**2, rel=0.05)


def test_decoding_as_measured() -> None:
    """A single short request takes 5.9 ms a token."""
    (row,) = simulate(SMALL, trace(request("a", 0.0, 1_000, 500)))
    assert row.tpot_s == pytest.approx(5.9e-3, rel=0.05)


def test_only_the_prefill_is_simulated_when_another_decodes() -> None:
    """A disaggregated instance prefills; the decoder's tokens come at their ideal pace, and take no room."""
    (row,) = simulate(replace(SMALL, layout=Layout.DISAGGREGATED), trace(request("a", 0.0, 1_000, 500)))
    assert row.tpot_s == pytest.approx(IDEAL_TPOT_S)
    assert row.decoder == DECODER
    assert row.instance != DECODER


def test_unprefilled_tokens_are_the_load_of_prefill_instances() -> None:
    """With one long prompt and three short ones under way, the next goes where the fewest tokens are to be prefilled,
    not where the fewest requests are."""
    crowd = [request("long", 0.0, 30_000)] + [request(name, 0.01, 300) for name in "bcd"]
    disaggregated = replace(SMALL, instances=2, policy="least-loaded", layout=Layout.DISAGGREGATED)
    rows = by_id(simulate(disaggregated, trace(*crowd)))
    assert {rows[name].instance for name in "bcd"} == {"i00", "i01"} - {rows["long"].instance}
    colocated = by_id(simulate(replace(disaggregated, layout=Layout.COLOCATED), trace(*crowd)))
    assert {colocated[name].instance for name in "bcd"} == {"i00", "i01"}


def test_a_prompt_is_load_until_its_first_token() -> None:
    """While another decodes the reply, the prefill instance has no unprefilled tokens."""
    apart = replace(SMALL, instances=1, layout=Layout.DISAGGREGATED)
    rows = by_id(
        simulate(apart, trace(*(request(name, at, 8_000, 1_000) for name, at in (("a", 0), ("b", 0.1), ("c", 9)))))
    )
    assert (rows["a"].end_s or 0) > 9
    assert rows["a"].load == 0
    assert (rows["b"].load or 0) > 0
    assert rows["c"].load == 0


def test_what_has_not_ended_is_unfinished() -> None:
    """Requests that the time after the window does not suffice for have rows that say so, without an end."""
    late = trace(request("a", 59.0, 1_000, 100), request("b", 59.5, 1_000, 38_000), request("c", 70.0, 1_000, 30_000))
    rows = by_id(simulate(replace(SMALL, instances=1), late))
    assert rows["a"].ok
    for name in "bc":
        assert rows[name].error == "unfinished"
        assert rows[name].status is None
        assert rows[name].end_s is None
        assert not rows[name].ok


def test_nothing_is_simulated_beyond_need() -> None:
    """A run ends when all that was due in its window has ended, and DRAIN_S after it at the latest."""
    told: list[float] = []
    steady = trace(*(request(f"r{second}", float(second), 1_000, 10) for second in range(300)))
    rows = simulate(replace(SMALL, measure_s=100.0), steady, progress=told.append)
    assert all(row.ok for row in rows if row.due_s < 100.0)
    assert len(rows) < 110
    assert told == sorted(told)
    assert len(told) >= 9
    blocked = trace(*steady.requests, request("x", 99.0, 1_000, 38_000))
    rows = simulate(replace(SMALL, measure_s=100.0), blocked)
    assert 100 + DRAIN_S - 2 < max(row.due_s for row in rows) <= 100 + DRAIN_S


def test_least_loaded_without_a_tier_reuses_less_than_with_one() -> None:
    """A global tier turns what another instance computed into a hit; without one, nothing is fetched."""
    without = simulate(replace(SMALL, policy="least-loaded", global_ratio=0.0), TALK)
    with_tier = simulate(replace(SMALL, policy="least-loaded"), TALK)
    assert sum(row.fetched or 0 for row in without) == 0
    assert sum(row.fetched or 0 for row in with_tier) > 10_000


def test_smetric_spreads_what_bailian_piles() -> None:
    """First turns with one system prompt: SMetric spreads them, Bailian piles them where the prompt is."""
    first_turns = conversations(sessions=32, turns=1, every=2.0)
    spread = Counter(row.instance for row in simulate(SMALL, first_turns))
    piled = Counter(
        row.instance for row in simulate(replace(SMALL, policy="bailian", options={"weight": 0.95}), first_turns)
    )
    assert max(spread.values()) <= 10
    assert max(piled.values()) >= 25


def test_a_prompt_larger_than_the_cache_is_impossible() -> None:
    """The error names request, lengths and cache, and what to change."""
    with pytest.raises(ImpossibleScenario, match=r"request big has 39990 \+ 20 tokens.*40000.*--local-tokens"):
        simulate(SMALL, trace(request("big", 0.0, 39_990, 20)))


@pytest.mark.parametrize("size", [8, 24])
def test_a_foreign_block_size_is_impossible(size: int) -> None:
    """A cache's blocks are whole blocks of the trace."""
    with pytest.raises(ImpossibleScenario, match="no multiple of the trace's, 16 tokens"):
        simulate(replace(SMALL, block_size=size), TALK)


def test_an_empty_workload_is_impossible() -> None:
    """The error says how to get requests."""
    with pytest.raises(ImpossibleScenario, match="no requests: a higher rate or a longer time"):
        simulate(SMALL, trace())


def test_no_instance_is_impossible() -> None:
    """A cluster has at least one."""
    with pytest.raises(ImpossibleScenario, match="at least one"):
        simulate(replace(SMALL, instances=0), TALK)


def test_thinking_without_gaps_is_impossible() -> None:
    """A trace that does not say how long clients think can only be dispatched by its timestamps."""
    silent = Trace("made", SIZE, [replace(one, gap_s=None) for one in TALK.requests])
    with pytest.raises(ImpossibleScenario, match="--dispatch trace"):
        simulate(SMALL, silent)
    assert simulate(replace(SMALL, dispatch=Dispatch.TRACE), silent)


def test_nameless_blocks_hit_nothing() -> None:
    """A format that names no blocks can be simulated: every prompt is computed."""
    rows = simulate(SMALL, nothing_named(TALK.requests))
    assert {row.local for row in rows} == {row.fetched for row in rows} == {0}


def test_a_run_says_what_it_was() -> None:
    """Label, window and settings are those of the scenario; options that are defaults are no part of the label."""
    asked = replace(SMALL, policy="bailian", options={"weight": 0.25}, warmup_s=20.0)
    said = info(asked, simulate(asked, TALK))
    assert said.label == "bailian weight=0.25"
    assert said.window == (20.0, 80.0)
    assert said.settings["requests"] == len(TALK.requests)
    assert said.settings["fetch"] == "blocking"
    assert list(said.instances) == ["i00", "i01", "i02", "i03"]
    assert label(replace(asked, policy="smetric", options={})) == "smetric"
