"""Caches as arrays: they hold, find and evict what a cache of physical blocks would, and conserve their blocks."""

from __future__ import annotations

from collections import OrderedDict, deque

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.engine.block_cache import Block, BlockCache
from loadgen.simulation.caches import GlobalTier, LocalCache
from loadgen.simulation.keys import KeyArray

DEPTH = 5
BRANCHES = 2


def chain(path: list[int]) -> list[int]:
    """Keys of a path through a tree, its root excluded: equal keys are equal prefixes."""
    keys, at = [], 0
    for branch in path:
        at = at * BRANCHES + branch + 1
        keys.append(at)
    return keys


KEYS = sum(BRANCHES**depth for depth in range(DEPTH + 1))
paths = st.lists(st.integers(0, BRANCHES - 1), min_size=1, max_size=DEPTH)
actions = st.lists(st.one_of(paths, st.integers(0, 9)), max_size=60)


def array(keys: list[int]) -> KeyArray:
    return np.array(keys, np.int32)


def held(cache: LocalCache) -> set[int]:
    return {key for key in range(KEYS) if cache.prefix(array([key]))[0]}


@settings(deadline=None, max_examples=200)
@given(actions, st.integers(DEPTH, 20))
def test_as_a_cache_of_physical_blocks(script: list[list[int] | int], capacity: int) -> None:
    """A chain is taken in (its found part used, the rest allocated and stored) or given back, in any order: hits, free
    blocks, the keys evicted and their order are those of `BlockCache`, while no two tasks compute one key at once."""
    arrays, blocks = LocalCache(capacity, KEYS), BlockCache(capacity)
    under_way: deque[tuple[list[int], list[Block]]] = deque()
    for action in script:
        if isinstance(action, list):
            keys = chain(action)
            found = blocks.prefix(keys)
            unused = sum(not block.users for block in found)
            assert arrays.prefix(array(keys)) == (len(found), unused)
            if len(keys) - len(found) + unused > blocks.free:
                continue
            blocks.use(found)
            arrays.use(array(keys[: len(found)]))
            fresh = keys[len(found) :]
            allocated, evicted = blocks.allocate(len(fresh))
            assert arrays.allocate(len(fresh)) == evicted
            for block, key in zip(allocated, fresh, strict=True):
                blocks.store(block, key)
            assert arrays.store(array(fresh)) == (fresh, 0)
            under_way.append((keys, found + allocated))
        elif under_way:
            under_way.rotate(action)
            keys, taken = under_way.popleft()
            blocks.release(taken)
            arrays.release(array(keys), 0)
        assert arrays.free == blocks.free
    assert held(arrays) == set(blocks.keys)


@settings(deadline=None, max_examples=200)
@given(actions, st.integers(DEPTH, 20))
def test_blocks_are_conserved(script: list[list[int] | int], capacity: int) -> None:
    """Tasks that compute the same keys at once, block by block: whoever was let in gets every block, free blocks never
    fall below what is promised, and in the end all are free."""
    cache = LocalCache(capacity, KEYS)
    under_way: deque[tuple[list[int], int, int]] = deque()  # keys, blocks stored so far, nameless ones among them
    promised = 0
    for action in script:
        if isinstance(action, list):
            keys = chain(action)
            found, unused = cache.prefix(array(keys[:-1]))
            if len(keys) - found + unused + promised <= cache.free:
                cache.use(array(keys[:found]))
                promised += len(keys) - found
                under_way.append((keys, found, 0))
        elif under_way:
            under_way.rotate(action)
            keys, stored, nameless = under_way.popleft()
            if stored == len(keys):
                cache.release(array(keys), nameless)
                continue
            cache.allocate(1)
            promised -= 1
            nameless += cache.store(array(keys[stored : stored + 1]))[1]
            under_way.append((keys, stored + 1, nameless))
        assert promised <= cache.free <= capacity
    for keys, stored, nameless in under_way:
        cache.release(array(keys[:stored]), nameless)
    assert cache.free == capacity


def test_what_is_held_unused_is_taken_over() -> None:
    """A last block that is computed again takes the place of the one that holds its key: one block, not two."""
    cache = LocalCache(4, KEYS)
    cache.allocate(2)
    cache.store(array([1, 2]))
    cache.release(array([1, 2]), 0)
    cache.use(array([1]))
    cache.allocate(1)
    assert cache.store(array([2])) == ([], 0)
    assert cache.free == 2
    assert cache.allocate(2) == []


def test_what_another_uses_is_computed_beside_it() -> None:
    """A key that somebody uses is found once, and whoever computes it too has a block that nobody finds."""
    cache = LocalCache(4, KEYS)
    cache.allocate(1)
    cache.store(array([1]))
    cache.allocate(1)
    assert cache.store(array([1])) == ([], 1)
    assert cache.free == 2
    cache.release(array([1]), 0)
    assert cache.free == 2
    cache.release(array([1]), 1)
    assert cache.free == 4
    assert held(cache) == {1}


def test_the_longest_unused_leaf_is_evicted_first() -> None:
    """Of two chains with a common start, the one given back first loses its blocks first, its last block before all."""
    cache = LocalCache(5, KEYS)
    for keys in ([1, 2, 3], [1, 4, 5]):
        found = cache.prefix(array(keys))[0]
        cache.use(array(keys[:found]))
        cache.allocate(3 - found)
        cache.store(array(keys[found:]))
        cache.release(array(keys), 0)
    assert cache.allocate(1) == [3]
    assert cache.allocate(3) == [2, 5, 4]
    assert cache.allocate(1) == [1]


@settings(deadline=None, max_examples=200)
@given(st.lists(paths, max_size=60), st.integers(1, 20))
def test_the_tier_holds_what_was_used_last(script: list[list[int]], capacity: int) -> None:
    """Exactly the `capacity` keys last used, of one chain the earlier keys: a list in order of use says the same."""
    tier = GlobalTier(capacity, KEYS)
    order: OrderedDict[int, None] = OrderedDict()
    for path in script:
        keys = chain(path)
        known = next((place for place, key in enumerate(keys) if key not in order), len(keys))
        assert tier.prefix(array(keys)) == known
        tier.use(array(keys))
        for key in reversed(keys):
            order[key] = None
            order.move_to_end(key)
        while len(order) > capacity:
            order.popitem(last=False)
        assert {key for key in range(KEYS) if tier.prefix(array([key]))} == set(order)
