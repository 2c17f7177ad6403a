"""The router's own memory of what it sent where, as an estimate of each engine's cache."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from extproc.index import Change
from extproc.index.memory import Holders
from extproc.index.routed_cache import RoutedCache

A = [1, 2, 3, 4]


B = [1, 2, 5, 6]


C = [7, 8, 9]

# Prompts are paths in a small tree, a block's key the number that the path spells.


STEPS = st.lists(st.integers(1, 3), min_size=1, max_size=6)


NOTES = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]), STEPS, st.integers(0, 4), st.booleans()
    ),  # instance, prompt, seconds, expire
    max_size=40,
)


def chain_of(steps: Sequence[int]) -> list[int]:
    return list(itertools.accumulate(steps, lambda key, step: 4 * key + step))


def test_a_prompt_is_added_once() -> None:
    """Only blocks that the instance did not have yet are written."""
    cache = RoutedCache("pool", 100, 60.0, writer="me")
    assert cache.note("a", A, 0.0) == Change("pool", "a", add=A, remove=[], writer="me")
    assert cache.note("a", B, 1.0) == Change("pool", "a", add=[5, 6], remove=[], writer="me")
    assert cache.note("a", A, 2.0) == Change("pool", "a", add=[], remove=[], writer="me")
    assert cache.note("b", A, 3.0).add == A
    assert cache.sizes() == {"a": 6, "b": 4}


def test_capacity_takes_the_oldest_leaf_first() -> None:
    """Room is made from the end of the prompt that was sent longest ago; what newer ones share stays."""
    cache = RoutedCache("pool", 6, 60.0)
    cache.note("a", A, 0.0)
    cache.note("a", B, 1.0)
    assert cache.note("a", [7], 2.0).remove == [4]
    assert cache.note("a", [7, 8, 9], 3.0).remove == [3, 6]
    assert cache.note("a", A, 4.0) == Change("pool", "a", add=[3, 4], remove=[5, 9])


def test_a_prompt_beyond_the_capacity() -> None:
    """Of a prompt longer than the cache its beginning is kept, as of nothing else would a follow-up profit."""
    cache = RoutedCache("pool", 3, 60.0)
    cache.note("a", C, 0.0)
    assert cache.note("a", A, 1.0) == Change("pool", "a", add=[1, 2, 3], remove=[9, 8, 7])


def test_time_to_live() -> None:
    """A block goes when it was not sent for the time to live, with or without new prompts."""
    cache = RoutedCache("pool", 100, 10.0)
    cache.note("a", A, 0.0)
    cache.note("a", B, 6.0)
    assert cache.expire(9.9) == []
    assert cache.expire(10.0) == [Change("pool", "a", remove=[4, 3])]
    assert cache.note("a", C, 16.0) == Change("pool", "a", add=C, remove=[6, 5, 2, 1])
    cache.expire(1000.0)
    assert cache.sizes() == {}


def test_replay_and_drop() -> None:
    """All that is remembered can be written again from nothing, or given up."""
    cache = RoutedCache("pool", 100, 10.0, writer="me")
    cache.note("a", A, 0.0)
    cache.note("a", B, 0.0)
    again = cache.replay("a")
    assert again.forget
    assert again.writer == "me"
    holders = Holders()
    holders.apply(again)
    assert holders.match(A) == holders.match(B) == {"a": 4}
    assert cache.drop("a") == Change("pool", "a", forget=True, writer="me")
    assert cache.replay("a").add == []


@given(NOTES, st.integers(1, 30))
def test_the_index_is_what_the_cache_remembers(notes: list[tuple[str, list[int], int, bool]], capacity: int) -> None:
    """After any prompts: the index equals the cache, no block is there without those before it, all are young enough,
    and no instance has more than its capacity."""
    cache, holders, now = RoutedCache("pool", capacity, 10.0), Holders(), 0
    model: dict[str, set[int]] = {"a": set(), "b": set()}
    last: dict[tuple[str, int], int] = {}
    for instance, steps, passed, expire in notes:
        now += passed
        changes = cache.expire(now) if expire else []
        changes.append(cache.note(instance, chain_of(steps), now))
        last.update({(instance, key): now for key in chain_of(steps)})
        for change in changes:
            assert not set(change.add) & set(change.remove)
            holders.apply(change)
            held = model[change.instance]
            assert held.isdisjoint(change.add)
            assert held.issuperset(change.remove)
            for key in change.remove:
                held.remove(key)
                assert not held & {4 * key + step for step in (1, 2, 3)}, "a leaf goes before its parent"
            for key in change.add:
                assert key < 4 or key // 4 in held, "a parent comes before its leaf"
                held.add(key)
        assert holders.sizes() == {name: len(held) for name, held in model.items() if held}
        assert len(model[instance]) <= capacity
        assert all(now - last[instance, key] < 10 for key in model[instance])
        assert holders.match(chain_of(steps)).get(instance) == min(len(steps), capacity)
