"""The simulated instance: the live engine's scheduler over arrays, with a global tier beneath it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.engine.instance import Instance, Removed, Request, Stored
from loadgen.engine.timing import GB, PROFILES
from loadgen.results.records import Row
from loadgen.simulation import instance as simulated
from loadgen.simulation.caches import GlobalTier, LocalCache
from loadgen.simulation.instance import FETCH_S, SimulatedInstance, SimulatedTask
from loadgen.simulation.scenario import Fetch
from loadgen.workloads.trace import TraceRequest
from tests.support.driving import Course, drive

SIZE = 4
H20 = PROFILES["30b-h20"]
KEYS = 4096
GBPS = 4.0


def task(prompt: int, reply: int, keys: Sequence[int]) -> SimulatedTask:
    traced = TraceRequest(id="r", session="s", turn=0, arrival_s=0.0, input=prompt, output=reply)
    row = Row(request="r", session="s", turn=0, due_s=0.0, sent_s=0.0, input=prompt, output=reply)
    named = np.array(keys[: (prompt + reply - 1) // SIZE], np.int32)
    return SimulatedTask(prompt=prompt, reply=reply, keys=named, traced=traced, row=row)


def instance(blocks: int = 64, tier: GlobalTier | None = None, fetch: Fetch = Fetch.BLOCKING) -> SimulatedInstance:
    return SimulatedInstance("i", H20, LocalCache(blocks, KEYS), SIZE, tier, fetch, GBPS)


def fetch_s(tokens: int) -> float:
    """How long a fetch of so many tokens takes on an idle link."""
    return FETCH_S + tokens * H20.kv_per_token / (GBPS * GB)


def alone(subject: SimulatedInstance, one: SimulatedTask) -> float:
    """Run one task on an idle instance; when its first token came."""
    return drive(subject, [(0.0, one)], leap=True, wake=subject.next_arrival).first[0]


def index(course: Course) -> set[int]:
    """What somebody who follows the events takes to be held."""
    keys: set[int] = set()
    for event in course.events:
        if isinstance(event, simulated.Removed):
            keys.difference_update(event.keys)
        else:
            keys.update(event.keys)
    return keys


# A turn's prompt is the one before, its reply, and more than the blocks that all sessions begin with: no last block of
# a prompt is ever found, so none has two copies in the live engine's cache.
COMMON = 2
turns = st.lists(
    st.tuples(st.integers(0, 2), st.integers(COMMON * SIZE + 1, 30), st.integers(1, 30)), min_size=1, max_size=14
)


def conversations(drawn: list[tuple[int, int, int]]) -> list[tuple[float, int, int, list[int]]]:
    """(arrival, prompt, reply, keys), each arriving long after the one before has ended."""
    lengths: dict[int, int] = {}
    made = []
    for number, (session, new, reply) in enumerate(drawn):
        if lengths.get(session, 0) > 100:
            session += 3
        prompt = lengths.get(session, 0) + new
        lengths[session] = prompt + reply
        own = range(200 * (session + 1), 200 * (session + 1) + 100)
        made.append((10.0 * number, prompt, reply, [*range(COMMON), *own]))
    return made


@settings(deadline=None, max_examples=100)
@given(turns, st.integers(50, 90))
def test_as_the_live_engines_instance(drawn: list[tuple[int, int, int]], blocks: int) -> None:
    """Over tasks that come one after the other: the same times, hits, keys stored and evicted, in the same order."""
    asked = conversations(drawn)
    live, modelled = Instance[Request](H20, blocks, SIZE), instance(blocks)
    requests = [
        (at, Request(prompt=prompt, reply=reply, keys=keys[: (prompt + reply - 1) // SIZE]))
        for at, prompt, reply, keys in asked
    ]
    tasks = [(at, task(prompt, reply, keys)) for at, prompt, reply, keys in asked]
    expected, course = drive(live, requests, leap=False), drive(modelled, tasks, leap=True)
    assert course.first == pytest.approx(expected.first)
    assert course.end == pytest.approx(expected.end)
    assert [one.hit for _, one in tasks] == [one.hit for _, one in requests]
    assert index(course) == set(live.cache.keys)
    for ours, theirs in ((simulated.Removed, Removed), (simulated.Stored, Stored)):
        assert [key for event in course.events if isinstance(event, ours) for key in event.keys] == [
            key
            for event in expected.events
            if isinstance(event, theirs)
            for key in ([event.key] if isinstance(event, Removed) else event.keys)
        ]


crowds = st.lists(
    st.tuples(st.floats(0.0, 0.05), st.integers(0, 2), st.integers(1, 60), st.integers(1, 30)), min_size=1, max_size=14
)


@settings(deadline=None, max_examples=100)
@given(crowds, st.integers(23, 60), st.sampled_from(Fetch), st.integers(0, 80), st.booleans())
def test_crowds_leave_nothing_behind(
    drawn: list[tuple[float, int, int, int]], blocks: int, fetch: Fetch, tier: int, leap: bool
) -> None:
    """Tasks that share, compute and fetch the same keys at once, in too little memory: all of them end, every block is
    free and none promised, and the events say what the cache holds."""
    local = LocalCache(blocks, KEYS)
    subject = SimulatedInstance("i", H20, local, SIZE, GlobalTier(tier, KEYS) if tier else None, fetch, GBPS)
    arrivals, at = [], 0.0
    for gap, session, prompt, reply in drawn:
        at += gap
        arrivals.append((at, task(prompt, reply, range(100 * session, 100 * session + 30))))

    def check() -> None:
        assert local.free >= subject._promised >= 0

    course = drive(subject, arrivals, leap=leap, wake=subject.next_arrival, check=check)
    assert len(course.end) == len(drawn)
    assert local.free == blocks
    assert subject._promised == 0
    assert index(course) == {key for key in range(300) if local.prefix(np.array([key], np.int32))[0]}
    for number, (when, one) in enumerate(arrivals):
        assert when < course.first[number] <= course.end[number]
        assert one.hit + one.fetched < one.prompt
        assert one.ready <= course.first[number]


def test_a_fetch_becomes_local() -> None:
    """What the tier has is fetched, counted as fetched, written to the instance's own cache, and found there next."""
    tier = GlobalTier(100, KEYS)
    tier.use(np.arange(10, dtype=np.int32))
    subject = instance(tier=tier)
    first, again = task(42, 1, range(20)), task(42, 1, range(20))
    alone(subject, first)
    assert (first.hit, first.fetched) == (0, 40)
    alone(subject, again)
    assert (again.hit, again.fetched) == (40, 0)


def test_what_is_computed_is_written_through() -> None:
    """Prompt and reply of one instance are fetched by another that shares the tier."""
    tier = GlobalTier(100, KEYS)
    alone(instance(tier=tier), task(20, 9, range(20)))
    other = task(40, 1, range(20))
    alone(instance(tier=tier), other)
    assert other.fetched == 28


def test_a_prompt_is_in_the_tier_before_its_reply_ends() -> None:
    """With the first token, others may fetch it."""
    tier = GlobalTier(100, KEYS)
    subject, one = instance(tier=tier), task(20, 100, range(30))
    subject.waiting.append(one)
    step = subject.begin(0.0)
    assert step
    assert tier.prefix(one.keys) == 0
    subject.finish(step)
    assert tier.prefix(one.keys) == 5


def test_without_a_tier_nothing_is_fetched() -> None:
    """An instance of a cluster without global tier computes what its own cache lacks."""
    alone(instance(), task(20, 9, range(20)))
    other = task(40, 1, range(20))
    alone(instance(), other)
    assert other.fetched == 0


@pytest.mark.parametrize("fetch", Fetch)
def test_a_fetch_takes_its_time(fetch: Fetch) -> None:
    """On an idle instance, either kind delays the first token by its latency and its bytes at the link's rate."""
    tier = GlobalTier(100, KEYS)
    tier.use(np.arange(10, dtype=np.int32))
    fetching = alone(instance(tier=tier, fetch=fetch), task(42, 1, range(20)))
    assert fetching == pytest.approx(fetch_s(40) + H20.seconds([(2, 40)], []))


@pytest.mark.parametrize("fetch", Fetch)
def test_only_a_blocking_fetch_holds_up_others(fetch: Fetch) -> None:
    """A reply that is being decoded stalls for a blocking fetch, and takes no notice of an asynchronous one."""
    tier = GlobalTier(1000, KEYS)
    tier.use(np.arange(500, 900, dtype=np.int32))
    ends = []
    for others in ([], [(0.001, task(1602, 1, range(500, 900)))]):
        subject = instance(500, tier, fetch)
        course = drive(subject, [(0.0, task(4, 3, range(10))), *others], leap=True, wake=subject.next_arrival)
        ends.append(course.end[0])
    assert ends[1] - ends[0] == pytest.approx(fetch_s(1600) if fetch is Fetch.BLOCKING else 0.0, abs=5e-3)


def test_a_link_serves_one_fetch_after_the_other() -> None:
    """Two asynchronous fetches at once end one after the other; one that begins when the link is free does not wait."""
    tier = GlobalTier(1000, KEYS)
    tier.use(np.arange(100, 200, dtype=np.int32))
    tier.use(np.arange(300, 400, dtype=np.int32))
    tier.use(np.arange(500, 600, dtype=np.int32))
    subject = instance(500, tier, Fetch.ASYNC)
    one, two, three = (task(402, 1, range(first, first + 100)) for first in (100, 300, 500))
    drive(subject, [(1.0, one), (1.0, two), (2.0, three)], leap=True, wake=subject.next_arrival)
    assert one.ready == pytest.approx(1.0 + fetch_s(400))
    assert two.ready == pytest.approx(1.0 + 2 * fetch_s(400))
    assert three.ready == pytest.approx(2.0 + fetch_s(400))


def test_a_hit_waits_for_what_is_on_its_way() -> None:
    """Who finds blocks that another task's fetch has yet to bring starts when they are there, and fetches nothing."""
    tier = GlobalTier(1000, KEYS)
    tier.use(np.arange(100, 200, dtype=np.int32))
    subject = instance(500, tier, Fetch.ASYNC)
    one, other = task(402, 1, range(100, 200)), task(390, 1, range(100, 200))
    drive(subject, [(1.0, one), (1.001, other)], leap=True, wake=subject.next_arrival)
    assert (other.hit, other.fetched) == (388, 0)
    assert other.ready == one.ready > 1.001


def test_a_fetch_that_nobody_else_waits_for_ends_a_leap() -> None:
    """While one decodes, a fetched prompt is computed as soon as it is there, not when the reply has ended."""
    tier = GlobalTier(1000, KEYS)
    tier.use(np.arange(100, 200, dtype=np.int32))
    subject = instance(1000, tier, Fetch.ASYNC)
    both = [(0.0, task(4, 1000, range(500, 1000))), (0.1, task(402, 1, range(100, 200)))]
    course = drive(subject, both, leap=True, wake=subject.next_arrival)
    assert course.first[1] < 0.1 + fetch_s(400) + 0.02 < course.end[0]
