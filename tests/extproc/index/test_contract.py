"""Every promise of `Index`, kept by every backend: the embedded one, Redis 6.2 and 7, and a Redis Cluster."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from extproc.base.errors import IndexLost
from extproc.base.model import EventReport, Knowledge
from extproc.index import GUESSES, MAX_ADAPTERS, Change, Index
from extproc.index.memory import SHARDS

CHAIN = tuple(xxh3_64_intdigest(b"%d" % i) for i in range(1600))


@pytest.fixture
async def index(open_empty: Callable[[], Index]) -> AsyncIterator[Index]:
    index = open_empty()
    yield index
    await index.close()


async def test_match_counts_leading_blocks(index: Index) -> None:
    """Each instance's hit is the number of leading blocks that it holds; who holds none is absent."""
    await index.apply(
        [
            Change("pool", "all", add=CHAIN),
            Change("pool", "half", add=CHAIN[:800]),
            Change("pool", "too", add=CHAIN[:800]),
            Change("pool", "first", add=CHAIN[:1]),
            Change("pool", "other", add=[7, 8, 9]),
        ]
    )
    assert await index.match("pool", CHAIN) == {"all": 1600, "half": 800, "too": 800, "first": 1}
    assert await index.match("pool", CHAIN[:10]) == {"all": 10, "half": 10, "too": 10, "first": 1}
    assert await index.match("pool", CHAIN[:1]) == {"all": 1, "half": 1, "too": 1, "first": 1}
    assert await index.match("pool", [7, 8, 10]) == {"other": 2}


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 799, 800, 801, 1598, 1599, 1600])
async def test_match_is_exact_to_the_block(index: Index, depth: int) -> None:
    """Bisection finds the very last block, wherever it is."""
    await index.apply([Change("pool", "a", add=CHAIN[:depth]), Change("pool", "b", add=CHAIN[:801])])
    found = await index.match("pool", CHAIN)
    assert found.get("a", 0) == depth
    assert found["b"] == 801


async def test_nothing_to_match(index: Index) -> None:
    """An empty chain, an unknown pool and an unknown prompt hit nothing."""
    await index.apply([Change("pool", "a", add=CHAIN)])
    assert await index.match("pool", []) == {}
    assert await index.match("unknown", CHAIN) == {}
    assert await index.match("pool", [1, *CHAIN]) == {}


async def test_pools_are_separate(index: Index) -> None:
    """The same instance and the same keys in two pools have nothing to do with each other."""
    await index.apply([Change("pool", "a", add=CHAIN), Change("{pool", "a", add=CHAIN[:5]), Change("}", "a", add=[1])])
    await index.apply([Change("pool", "a", forget=True)])
    assert await index.match("pool", CHAIN) == {}
    assert await index.match("{pool", CHAIN) == {"a": 5}
    assert await index.match("}", [1]) == {"a": 1}


async def test_order_within_a_change(index: Index) -> None:
    """A change forgets first, then removes, then adds."""
    await index.apply([Change("pool", "a", add=CHAIN)])
    await index.apply([Change("pool", "a", forget=True, add=CHAIN[:3])])
    assert await index.match("pool", CHAIN) == {"a": 3}


async def test_order_of_changes(index: Index) -> None:
    """Changes of one call apply in their order."""
    await index.apply(
        [
            Change("pool", "a", add=CHAIN[:9]),
            Change("pool", "a", remove=CHAIN[8:4:-1]),
            Change("pool", "a", add=CHAIN[5:7]),
            Change("pool", "b", add=CHAIN[:9]),
            Change("pool", "b", forget=True),
        ]
    )
    assert await index.match("pool", CHAIN) == {"a": 7}


async def test_apply_is_idempotent(index: Index) -> None:
    """A held key can be added again, an absent one removed, and a key mentioned twice."""
    for _ in range(2):
        await index.apply([Change("pool", "a", add=[*CHAIN[:5], CHAIN[4]])])
    assert await index.sizes("pool") == {"a": 5}
    for _ in range(2):
        await index.apply([Change("pool", "a", remove=[CHAIN[4], CHAIN[4], 12345])])
    assert await index.match("pool", CHAIN) == {"a": 4}
    assert await index.sizes("pool") == {"a": 4}


async def test_forget_leaves_the_others_alone(index: Index) -> None:
    """Forgetting an instance takes nothing from those that hold the same blocks."""
    await index.apply([Change("pool", name, add=CHAIN[:700]) for name in ("a", "b", "c")])
    await index.apply([Change("pool", "b", forget=True)])
    assert await index.match("pool", CHAIN) == {"a": 700, "c": 700}
    assert await index.sizes("pool") == {"a": 700, "c": 700}


async def test_what_was_forgotten_never_comes_back(index: Index) -> None:
    """However often instances forget and new ones come, nobody inherits another's blocks."""
    for i in range(40):
        await index.apply([Change("pool", "a", forget=True, add=CHAIN[: 40 - i])])
        await index.apply([Change("pool", f"b{i}", add=CHAIN[:1]), Change("pool", f"b{i}", forget=True)])
        assert await index.match("pool", CHAIN) == {"a": 40 - i}
    for _ in range(3 * SHARDS):  # enough for the embedded index to use its places again
        await index.apply([Change("pool", "c", add=[1])])
        if type(index).__name__ != "MemoryIndex":
            break
    await index.apply([Change("pool", f"d{i}", add=[2]) for i in range(80)])
    assert await index.match("pool", CHAIN) == {"a": 1}


async def test_a_thousand_instances(index: Index) -> None:
    """All of them share a system prompt, one has more: each is listed, and a caller's copy is its own."""
    names = [f"10.0.{i // 250}.{i % 250}:8000" for i in range(1000)]
    await index.apply([Change("pool", name, add=CHAIN[:100]) for name in names])
    await index.apply([Change("pool", names[500], add=CHAIN[100:200])])
    expected = dict.fromkeys(names, 100) | {names[500]: 200}
    for _ in range(2):
        found = dict(await index.match("pool", CHAIN))
        assert found == expected
        found.clear()
    await index.apply([Change("pool", names[3], forget=True)])
    del expected[names[3]]
    assert await index.match("pool", CHAIN) == expected


async def test_every_depth_has_its_instance(index: Index) -> None:
    """The answer is exact where every instance holds another part of the prompt."""
    await index.apply([Change("pool", f"i{depth}", add=CHAIN[:depth]) for depth in range(1, 200)])
    assert await index.match("pool", CHAIN) == {f"i{depth}": depth for depth in range(1, 200)}


async def test_keys_of_all_64_bits(index: Index) -> None:
    """The smallest and the largest key are keys like others."""
    chain = [0, 2**64 - 1, 2**63, 1]
    await index.apply([Change("pool", "a", add=chain)])
    assert await index.match("pool", chain) == {"a": 4}
    await index.apply([Change("pool", "a", remove=chain[:1:-1])])
    assert await index.match("pool", chain) == {"a": 2}


async def test_writers_of_one_instance(index: Index) -> None:
    """An instance holds what any of its writers added; each removes and forgets only its own."""
    await index.apply(
        [
            Change("pool", "a", add=CHAIN[:5], writer="router-1"),
            Change("pool", "a", add=CHAIN[:8], writer="router-2"),
            Change("pool", "a", add=CHAIN[:2]),
        ]
    )
    assert await index.match("pool", CHAIN) == {"a": 8}
    assert await index.sizes("pool") == {"a": 15}
    await index.apply([Change("pool", "a", remove=CHAIN[7:0:-1], writer="router-1")])
    assert await index.match("pool", CHAIN) == {"a": 8}
    await index.apply([Change("pool", "a", forget=True, writer="router-2")])
    assert await index.match("pool", CHAIN) == {"a": 2}
    await index.apply([Change("pool", "a", forget=True)])
    assert await index.match("pool", CHAIN) == {"a": 1}


async def test_guesses_end_with_the_instances_own_word(index: Index) -> None:
    """What routers noted beside an instance's own writer is matched, not counted, and gone when that writer forgets the
    instance; each router hears of it with its next write, and begins anew."""
    noted = [Change("pool", "a", add=CHAIN[5:9], writer=f"{GUESSES}{n}") for n in (1, 2)]
    await index.apply([Change("pool", "a", add=CHAIN[:5]), *noted, Change("pool", "b", add=CHAIN[5:7], writer="~1")])
    assert await index.match("pool", CHAIN[5:]) == {"a": 4, "b": 2}
    assert await index.sizes("pool") == {"a": 5}
    await index.apply([Change("pool", "a", forget=True, add=CHAIN[:5])])
    assert await index.match("pool", CHAIN[5:]) == {"b": 2}
    for n in (1, 2):
        with pytest.raises(IndexLost) as error:
            await index.apply([Change("pool", "a", add=CHAIN[9:10], writer=f"{GUESSES}{n}")])
        assert (error.value.pool, error.value.instances) == ("pool", {"a"})
        await index.apply([Change("pool", "a", forget=True, add=CHAIN[5:6], writer=f"{GUESSES}{n}")])
        await index.apply([Change("pool", "a", add=CHAIN[6 : 6 + n], writer=f"{GUESSES}{n}")])
    assert await index.match("pool", CHAIN[5:]) == {"a": 3, "b": 2}


async def test_sizes(index: Index) -> None:
    """Sizes count the blocks held by each instance; who holds none is absent."""
    assert await index.sizes("pool") == {}
    await index.apply([Change("pool", "a", add=CHAIN), Change("pool", "b", add=CHAIN[:2]), Change("pool", "c")])
    await index.apply([Change("pool", "a", remove=CHAIN[:99:-1]), Change("pool", "b", remove=CHAIN[1::-1])])
    assert await index.sizes("pool") == {"a": 100}


async def adapters(index: Index, pool: str = "pool") -> dict[str, set[str]]:
    """As a router knows them that has just matched something."""
    await index.match(pool, CHAIN)
    return {name: set(instances) for name, instances in index.adapters(pool).items()}


async def test_adapters_are_those_of_an_instance(index: Index) -> None:
    """Each name is known with the instances that announced it, in the pool where they did."""
    assert await adapters(index) == {}
    await index.apply([Change("pool", "a", adapters=["sql", "größe"]), Change("other", "a", adapters=["x"])])
    await index.apply([Change("pool", "b", adapters=["sql"], add=CHAIN[:3])])
    assert await adapters(index) == {"sql": {"a", "b"}, "größe": {"a"}}
    assert await adapters(index, "other") == {"x": {"a"}}
    assert await adapters(index, "unknown") == {}


async def test_a_list_of_adapters_replaces_the_one_before(index: Index) -> None:
    """What is told is all; what is not told stays."""
    await index.apply([Change("pool", "a", adapters=["one", "two"])])
    await index.apply([Change("pool", "a", add=CHAIN[:3])])
    assert await adapters(index) == {"one": {"a"}, "two": {"a"}}
    await index.apply([Change("pool", "a", adapters=["two", "three"])])
    assert await adapters(index) == {"two": {"a"}, "three": {"a"}}
    await index.apply([Change("pool", "a", adapters=[])])
    assert await adapters(index) == {}


async def test_an_instance_that_forgets_has_no_adapters(index: Index) -> None:
    """It may be another engine by now. What it announces from then on is known again; the others keep theirs."""
    await index.apply([Change("pool", name, adapters=["sql"]) for name in ("a", "b")])
    await index.apply([Change("pool", "a", forget=True, add=CHAIN[:3])])
    assert await adapters(index) == {"sql": {"b"}}
    await index.apply([Change("pool", "a", forget=True, adapters=["other"])])
    assert await adapters(index) == {"sql": {"b"}, "other": {"a"}}


async def test_adapters_of_one_instance_are_bounded(index: Index) -> None:
    """One that announces ever new names is known by its newest, and pushes out nobody else's."""
    names = [f"adapter-{i}" for i in range(MAX_ADAPTERS + 50)]
    await index.apply([Change("pool", "b", adapters=["sql"])])
    await index.apply([Change("pool", "a", adapters=names)])
    assert await adapters(index) == {"sql": {"b"}} | {name: {"a"} for name in names[50:]}


async def test_whoever_asks_for_sizes_knows_the_adapters(index: Index) -> None:
    """A pool that is only chosen for its adapters is never matched before they are known."""
    await index.apply([Change("pool", "a", adapters=["sql"])])
    await index.sizes("pool")
    assert index.adapters("pool") == {"sql": {"a"}}
    await index.apply([Change("pool", "a", forget=True)])
    await index.sizes("pool")
    assert index.adapters("pool") == {}


async def test_reports(index: Index) -> None:
    """What followers report of their instances is what everybody reads."""
    reports = {
        "a": EventReport(Knowledge.EXACT, 2**63, 0.25),
        "b": EventReport(Knowledge.UNKNOWN, -1, 0.0),
        "c": EventReport(Knowledge.UNKNOWN, 7, 0.5, "tcp://[fd00::1]:1: some words: why?", 12.5, 0.125),
    }
    assert await index.reports("pool") == {}
    await index.report("pool", reports)
    await index.report("pool", reports | {"b": EventReport(Knowledge.RECOVERING, 7, 1e-9)})
    assert await index.reports("pool") == reports | {"b": EventReport(Knowledge.RECOVERING, 7, 1e-9)}
    assert await index.reports("other") == {}


async def test_concurrent_calls(index: Index) -> None:
    """Many matches and writes at once: each match sees whole changes of some moment."""
    await index.apply([Change("pool", f"i{n}", add=CHAIN[:5]) for n in range(8)])

    async def write(n: int) -> None:
        for _ in range(10):
            await index.apply([Change("pool", f"i{n}", add=CHAIN[5:300])])
            await index.apply([Change("pool", f"i{n}", remove=CHAIN[299:4:-1])])

    async def read() -> None:
        for _ in range(20):
            assert set((await index.match("pool", CHAIN)).values()) <= {5, 300}

    await asyncio.gather(*(write(n) for n in range(8)), *(read() for _ in range(8)))
    assert await index.match("pool", CHAIN) == {f"i{n}": 5 for n in range(8)}


# Prompts are paths in a small tree: those that begin alike share their first blocks.
PATHS = [path for depth in range(1, 5) for path in itertools.product("ab", repeat=depth)]
HOLDERS = [("i1", ""), ("i2", ""), ("i3", "r1"), ("i3", "r2")]
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["store", "remove", "clear"]),
        st.sampled_from(HOLDERS),
        st.sampled_from(PATHS),
        st.booleans(),  # whether the call ends here
    ),
    max_size=30,
)


def chain_of(path: Sequence[str]) -> list[int]:
    return list(itertools.accumulate(path, lambda key, step: xxh3_64_intdigest(step.encode(), key), initial=0))[1:]


ALL_CHAINS = [chain_of(path) for path in PATHS]


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def test_any_sequence_of_changes_equals_the_model(open_empty: Callable[[], Index], runner: asyncio.Runner) -> None:
    """Whatever is stored, removed leaf first and forgotten: each match equals a plain dictionary of sets."""

    index = open_empty()

    async def play(operations: Sequence[tuple[str, tuple[str, str], tuple[str, ...], bool]]) -> None:
        pool = uuid.uuid4().hex
        model: dict[tuple[str, str], set[int]] = {holder: set() for holder in HOLDERS}
        changes: list[Change] = []
        for kind, (instance, writer), path, end in operations:
            held = model[instance, writer]
            if kind == "store":
                changes.append(Change(pool, instance, add=chain_of(path), writer=writer))
                held.update(chain_of(path))
            elif kind == "remove":
                below = [chain_of(other)[-1] for other in reversed(PATHS) if other[: len(path)] == path]
                changes.append(Change(pool, instance, remove=below, writer=writer))
                held.difference_update(below)
            else:
                changes.append(Change(pool, instance, forget=True, writer=writer))
                held.clear()
            if end:
                await index.apply(changes)
                changes = []
                await check(pool, model)
        await index.apply(changes)
        await check(pool, model)

    async def check(pool: str, model: dict[tuple[str, str], set[int]]) -> None:
        for chain in ALL_CHAINS:
            expected: dict[str, int] = {}
            for (instance, _), held in model.items():
                blocks = sum(1 for _ in itertools.takewhile(held.__contains__, chain))
                if blocks:
                    expected[instance] = max(blocks, expected.get(instance, 0))
            assert await index.match(pool, chain) == expected
        sizes: dict[str, int] = {}
        for (instance, _), held in model.items():
            sizes[instance] = sizes.get(instance, 0) + len(held)
        assert await index.sizes(pool) == {instance: size for instance, size in sizes.items() if size}

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(OPERATIONS)
    def any_sequence(operations: list[tuple[str, tuple[str, str], tuple[str, ...], bool]]) -> None:
        runner.run(play(operations))

    any_sequence()
    runner.run(index.close())


async def test_responses_are_remembered(index: Index) -> None:
    """Who keeps a response is found by its id, in its own pool; the newest word counts."""
    assert await index.recall("pool", "resp_1") is None
    await index.remember("pool", "resp_1", "10.0.0.1:8000", 60)
    await index.remember("pool", "resp_1", "10.0.0.2:8000", 60)
    await index.remember("pool", "resp_{x} é", "10.0.0.3:8000/1", 60)
    await index.remember("other", "resp_1", "10.0.0.9:8000", 60)
    assert await index.recall("pool", "resp_1") == "10.0.0.2:8000"
    assert await index.recall("pool", "resp_{x} é") == "10.0.0.3:8000/1"
    assert await index.recall("pool", "resp_2") is None
