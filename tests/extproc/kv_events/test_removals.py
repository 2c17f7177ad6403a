"""Both ways to announce removals, of an engine that holds blocks in several copies: the mirror learns which it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.kv_events.engines import Cleared, Event, Removed
from extproc.kv_events.removals import MOST, Removals
from tests.support.mirrored import BLOCK, PROMPT, PROMPTS, Told, chain, hash_of, remove, store
from tests.support.plain_cache import PlainCache

pytestmark = pytest.mark.usefixtures("short_runs")


class Engine:
    """Physical blocks in the order in which they will be evicted, as vLLM keeps them: last used, last; leaves first."""

    def __init__(self, *, last_only: bool) -> None:
        self.last_only = last_only
        self.queue: list[tuple[int, int]] = []  # hash, number of the copy
        self.copies = Counter[int]()
        self.truth = PlainCache()
        self._numbers = 0

    def compute(self, tokens: Sequence[int], again: int) -> list[Event]:
        """A prompt, of which the last `again` blocks are computed although they are there, or all that are not."""
        hashes = [hash_of(tokens[:end]) for end in range(BLOCK, len(tokens) + 1, BLOCK)]
        there = next((place for place, block in enumerate(hashes) if not self.copies[block]), len(hashes))
        first = max(0, min(there, len(hashes) - again))
        table = [next(copy for copy in reversed(self.queue) if copy[0] == block) for block in hashes[:first]]
        for block in hashes[first:]:
            self._numbers += 1
            table.append((block, self._numbers))
            self.copies[block] += 1
        self.queue = [copy for copy in self.queue if copy not in table] + table[::-1]
        return [self._truly(store(tokens, first))] if first < len(hashes) else []

    def evict(self) -> list[Event]:
        """The oldest copy leaves; whether that is said depends on the engine."""
        if not self.queue:
            return []
        block, _ = self.queue.pop(0)
        self.copies[block] -= 1
        self.truth.apply(Removed([block]))
        return [] if self.last_only and self.copies[block] else [Removed([block])]

    def _truly(self, event: Event) -> Event:
        self.truth.apply(event)
        return event


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("compute"), st.sampled_from(PROMPTS), st.sampled_from([0, 0, 0, 1, 2, 6])),
        st.tuples(st.just("evict"), st.none(), st.integers(1, 8)),
        st.sampled_from([("clear", None, 0), *(3 * [("evict", None, 40)])]),
    ),
    max_size=40,
)


def play(engine: Engine, told: Told, step: tuple[str, list[int] | None, int]) -> list[Event]:
    what, tokens, number = step
    if what == "compute" and tokens is not None:
        events = engine.compute(tokens, number)
    elif what == "evict":
        events = [event for _ in range(number) for event in engine.evict()]
    else:
        events = [Cleared()]
        engine.truth.apply(events[0])
        engine.queue.clear()
        engine.copies.clear()
    for event in events:
        told.note(event, settle=True)
    return events


@settings(deadline=None)
@given(STEPS)
def test_an_engine_that_announces_each_copy(steps: list[tuple[str, list[int] | None, int]]) -> None:
    """vLLM to 0.32: what is held is what the engine has, at every moment."""
    engine, told = Engine(last_only=False), Told()
    for step in steps:
        play(engine, told, step)
        assert told.drain() == engine.truth.keys()


@settings(deadline=None)
@given(STEPS)
def test_an_engine_that_announces_last_copies_only(steps: list[tuple[str, list[int] | None, int]]) -> None:
    """vLLM with the change: nothing that it has is missing; and once it has shown what it is, nothing is too much."""
    engine, told = Engine(last_only=True), Told()
    told.apply(*engine.compute(PROMPT, 0), *engine.compute(PROMPT, 1))
    for step in [("evict", None, len(engine.queue)), *steps]:
        play(engine, told, step)
        assert told.drain() == engine.truth.keys()


def test_until_it_shows_each_removal_is_of_one_copy() -> None:
    """A block stored twice and removed once is still there, and what hangs on it."""
    told = Told()
    told.apply(store(PROMPT[:12]), store(PROMPT[:12], 5), store(PROMPT, 6))
    assert told.apply(remove(PROMPT, 5)) == set(chain(PROMPT))


def test_a_block_that_leaves_before_what_hangs_on_it_shows_that_removals_are_of_last_copies() -> None:
    """The doubled last block of a prompt is removed once, then the block before it: so it is gone, and so is every
    other block that was believed to have a copy left."""
    told = Told()
    other = [4, 4, *PROMPT[2:]]
    told.apply(store(PROMPT), store(PROMPT, 7), store(other), store(other, 7))
    told.apply(remove(other, 7))
    assert told.held == set(chain(PROMPT)) | set(chain(other))
    told.apply(remove(PROMPT, 7, 6))
    assert told.held == set(chain(PROMPT[:12])) | set(chain(other[:14]))
    told.apply(store(PROMPT, 6), store(PROMPT, 7))
    assert told.apply(remove(PROMPT, 7)) == set(chain(PROMPT[:14])) | set(chain(other[:14]))


def test_a_second_removal_shows_that_each_copy_is_announced() -> None:
    """An engine that was taken for the other kind, or is another since it restarted."""
    told = Told()
    told.apply(store(PROMPT), store(PROMPT, 7), remove(PROMPT, 7, 6))  # removals are of last copies
    told.mirror.forget()
    told.apply(store(PROMPT), store(PROMPT, 5), remove(PROMPT, 7))
    assert told.held == set(chain(PROMPT[:14]))
    told.apply(remove(PROMPT, 7))
    assert told.apply(remove(PROMPT, 6, 5)) == set(chain(PROMPT[:14]))


@pytest.mark.parametrize("group", [{}, {"group": 1, "kind": "full_attention", "block": BLOCK}])
def test_a_block_that_is_stored_again_is_in_no_doubt(group: dict[str, Any]) -> None:
    """It was removed once of two copies, and came back: whatever the removal meant, it is there."""
    told = Told()
    short = PROMPT[:8]
    told.apply(store(PROMPT, kind="full_attention"), *([store(PROMPT, **group)] if group else []))
    told.apply(
        store(short, 3, **group), Removed([hash_of(short)], group=group.get("group", 0)), store(short, 3, **group)
    )
    told.apply(store(PROMPT, 7), remove(PROMPT, 7, 6))
    assert told.held == set(chain(PROMPT[:12]))


def test_groups_besides_the_trunk_have_copies_too() -> None:
    """What the trunk's blocks have shown goes for all groups of the engine."""
    told = Told()
    state: dict[str, Any] = {"group": 1, "block": 2 * BLOCK, "kind": "mamba"}
    told.apply(store(PROMPT, kind="full_attention"), store(PROMPT, **state), store(PROMPT, 3, **state))
    assert told.apply(remove(PROMPT, 3, group=1, block=4)) == set(chain(PROMPT))
    told.apply(store(PROMPT, 7), remove(PROMPT, 7, 6))
    told.apply(store(PROMPT, 6), store(PROMPT, 7))
    assert told.held == set(chain(PROMPT[:12]))


def test_doubts_are_bounded() -> None:
    """An engine that doubles everything and removes half of it takes no more memory than another."""
    removals = Removals()
    for block in range(3 * MOST):
        assert removals.left((0, block), 2) == 1
    assert removals.left((0, block), 1) == 0
    assert len(removals.turn()) == MOST - 1
