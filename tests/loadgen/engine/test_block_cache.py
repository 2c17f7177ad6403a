"""The prefix cache against a plain model of it, and its laws under any sequence of operations."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.engine.block_cache import Block, BlockCache


def stored(cache: BlockCache, *keys: str) -> list[Block]:
    """A chain of full blocks in use."""
    blocks, _ = cache.allocate(len(keys))
    for block, key in zip(blocks, keys, strict=True):
        cache.store(block, key)
    return blocks


def test_a_prefix_is_found_up_to_the_first_gap() -> None:
    """A hit is the leading run of held keys; what comes after a gap does not count."""
    cache = BlockCache(4)
    blocks = stored(cache, "a", "b", "d")
    assert cache.prefix(["a", "b", "c", "d"]) == blocks[:2]


def test_eviction_takes_the_oldest_chain_from_its_end() -> None:
    """Room is made by the chain that was freed first, its last block first; a block outlives its children."""
    cache = BlockCache(4)
    old, new = stored(cache, "a", "ab"), stored(cache, "c", "cd")
    cache.release(old)
    cache.release(new)
    assert cache.allocate(3)[1] == ["ab", "a", "cd"]


def test_blocks_without_a_key_are_used_first() -> None:
    """A block that no prompt could hit is reused before anything is evicted, as in vLLM since 0.24."""
    cache = BlockCache(3)
    chain = stored(cache, "a", "ab")
    partial, _ = cache.allocate(1)
    cache.release(chain)
    cache.release(partial)
    assert cache.allocate(1) == (partial, [])


def test_a_used_block_is_never_evicted() -> None:
    """Whoever uses a block keeps it, and asking for more than is free changes nothing."""
    cache = BlockCache(2)
    blocks = stored(cache, "a")
    cache.use(blocks)
    cache.release(blocks)
    with pytest.raises(MemoryError):
        cache.allocate(2)
    assert cache.prefix(["a"]) == blocks
    assert cache.free == 1


def test_each_copy_of_a_key_is_evicted_on_its_own() -> None:
    """Two blocks that hold one key are two copies: the key is found until the second one goes."""
    cache = BlockCache(2)
    first, second = stored(cache, "a"), stored(cache, "a")
    cache.release(first)
    cache.release(second)
    assert cache.keys == {"a": 2}
    assert cache.allocate(1)[1] == ["a"]
    assert cache.prefix(["a"]) == second


def test_clearing_is_refused_while_blocks_are_used() -> None:
    """A cache in use is not cleared; an idle one forgets everything and loses no block."""
    cache = BlockCache(2)
    blocks = stored(cache, "a")
    assert not cache.clear()
    cache.release(blocks)
    assert cache.clear()
    assert cache.prefix(["a"]) == []
    assert len(cache.allocate(2)[0]) == 2


chains = st.text("ab", min_size=1, max_size=5)
operations = st.lists(st.tuples(st.sampled_from(["run", "end", "clear"]), chains, st.integers(0, 9)), max_size=60)


@given(operations, st.integers(5, 12))
def test_the_cache_keeps_its_books(script: list[tuple[str, str, int]], capacity: int) -> None:
    """Whatever requests come and go: no block is lost, keys are what was stored less what was evicted, a held block has
    its whole prefix beside it, and a prefix is found exactly as far as its keys are held."""
    cache = BlockCache(capacity)
    model: Counter[str] = Counter()
    running: list[list[Block]] = []
    for operation, text, pick in script:
        keys = [text[: end + 1] for end in range(len(text))]
        if operation == "run":
            found = cache.prefix(keys)
            assert len(found) == next((at for at, key in enumerate(keys) if not model[key]), len(keys))
            fresh = len(keys) - len(found)
            if fresh + sum(not block.users for block in found) <= cache.free:
                cache.use(found)
                blocks, evicted = cache.allocate(fresh)
                model.subtract(evicted)
                for block, key in zip(blocks, keys[len(found) :], strict=True):
                    cache.store(block, key)
                    model[key] += 1
                running.append(found + blocks)
        elif operation == "end" and running:
            cache.release(running.pop(pick % len(running)))
        elif operation == "clear" and cache.clear():
            model.clear()
        assert cache.keys == {key: copies for key, copies in model.items() if copies}
        assert all(key[:-1] in cache.keys for key in cache.keys if len(key) > 1)
        assert cache.free + len({id(block) for blocks in running for block in blocks}) == capacity
