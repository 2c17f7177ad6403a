"""What the embedded index promises beyond the contract: it never suspends, and holds no more than what is held."""

from __future__ import annotations

import random

from extproc.base.model import EventReport, Knowledge
from extproc.index import Change
from extproc.index.memory import MAX_RESPONSES, SHARDS, Holders, MemoryIndex

_random = random.Random(1)
CHAIN = tuple(_random.getrandbits(64) for _ in range(1000))


def entries(holders: Holders) -> int:
    return sum(map(len, holders._shards))


def test_no_method_suspends() -> None:
    """The simulator drives the coroutines without a loop."""
    index = MemoryIndex()
    for call in (
        index.apply([Change("pool", "a", add=CHAIN)]),
        index.match("pool", CHAIN),
        index.report("pool", {"a": EventReport(Knowledge.EXACT, 1, 0.0)}),
        index.reports("pool"),
        index.sizes("pool"),
        index.close(),
    ):
        try:
            call.send(None)
        except StopIteration:
            continue
        raise AssertionError("it waits for something")


def test_forgotten_keys_are_swept() -> None:
    """Later changes clear up a little each, until nothing is left of who forgot."""
    holders = Holders()
    holders.apply(Change("pool", "a", add=CHAIN))
    holders.apply(Change("pool", "b", add=CHAIN[:10]))
    holders.apply(Change("pool", "a", forget=True))
    assert entries(holders) > 900
    for _ in range(SHARDS + 1):
        holders.apply(Change("pool", "b"))
    assert entries(holders) == 10
    assert holders.match(CHAIN) == {"b": 10}


def test_instances_that_come_and_go_leave_nothing() -> None:
    """However many instances restart or are replaced, places are used again: neither masks nor lists grow."""
    holders = Holders()
    for i in range(10 * SHARDS):
        holders.apply(Change("pool", f"i{i}", add=[i % 7]))
        holders.apply(Change("pool", f"i{i}", forget=True))
        holders.apply(Change("pool", "restarts", forget=True, add=[1, i]))
    assert len(holders._instances) <= 3 * SHARDS
    for _ in range(2 * SHARDS + 2):
        holders.apply(Change("pool", "restarts"))
    assert entries(holders) == 2
    assert holders.sizes() == {"restarts": 2}
    assert len(holders._bits) == 1


def test_equal_sets_are_one_object() -> None:
    """What a key costs beside its place in the dictionary does not grow with the number of instances."""
    holders = Holders()
    for i in range(100):
        holders.apply(Change("pool", f"i{i}", add=CHAIN))
    assert len({id(mask) for shard in holders._shards for mask in shard.values()}) == 1


async def test_remembered_responses_are_bounded() -> None:
    """The newest ones are remembered, and the oldest make room."""
    index = MemoryIndex()
    for number in range(MAX_RESPONSES + 10):
        await index.remember("pool", f"resp_{number}", "a", 60)
    assert len(index._responses["pool"]) == MAX_RESPONSES
    assert await index.recall("pool", "resp_9") is None
    assert await index.recall("pool", "resp_10") == "a"
