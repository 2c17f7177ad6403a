"""What counts as held where a model has several KV-cache groups, and behind holes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from extproc.kv_events.engines import Event, Stored
from tests.support.mirrored import BLOCK, KINDS, PROMPT, Told, chain, events, predecessors, remove, store
from tests.support.plain_cache import SIZE, PlainCache

pytestmark = pytest.mark.usefixtures("short_runs")


@settings(max_examples=150, deadline=None)
@given(events(0, 1, 2))
def test_it_holds_what_all_groups_of_a_hybrid_model_hold(batches: list[list[Event]]) -> None:
    """Two groups that keep whole prompts and one with a window of three blocks, each with its own removals."""
    told, plain = Told(), PlainCache({0: None, 1: 3, 2: None})
    before: dict[int, int] = {}
    step = [store([1, 1], group=group, kind=kind, window=window) for group, (kind, window) in KINDS.items()]
    for batch in [step, *batches]:
        for event in batch:
            plain.apply(event)
            predecessors(plain, before)
        assert told.apply(*batch, before=before) == plain.keys()


def test_a_block_removed_before_its_children_takes_them_along_and_brings_them_back() -> None:
    """Observation 6 says that engines do not do it; should one, the hit ends at the hole until it is filled."""
    told = Told()
    told.apply(store(PROMPT))
    assert told.apply(remove(PROMPT, 2)) == set(chain(PROMPT)[: 2 * 13 // SIZE])
    assert told.mirror.blocks == 7
    assert told.apply(store(PROMPT[: 3 * BLOCK], 2)) == set(chain(PROMPT))


def test_a_second_group_that_keeps_whole_prompts_must_hold_them_too() -> None:
    """Observation 12, several full groups: what one of them lacks is no hit."""
    told = Told()
    told.apply(store(PROMPT, kind="full_attention"))
    assert told.held
    assert told.apply(store(PROMPT[:6], group=1, kind="mla_attention")) == set(chain(PROMPT[:6]))
    assert told.apply(remove(PROMPT, 1, group=1)) == set(chain(PROMPT[:2]))


def test_a_sliding_window_holds_a_prompt_at_its_end_only() -> None:
    """Observation 12: a prompt hits at boundaries whose window is there, and no longer when the window is evicted."""
    told = Told()
    window = {"group": 1, "kind": "sliding_window", "window": 2 * BLOCK + 1}
    last_two = store(PROMPT, 6)
    told.apply(
        Stored(last_two.hashes, None, PROMPT, BLOCK, **window),  # type: ignore[arg-type]
        store(PROMPT, kind="full_attention"),
    )
    assert told.held == set(chain(PROMPT))
    assert told.apply(remove(PROMPT, 7, group=1)) == set()
    told.apply(store(PROMPT[:4], **window))  # type: ignore[arg-type]
    assert told.held == set(chain(PROMPT[:4]))


def test_an_empty_store_of_a_window_announces_the_group() -> None:
    """Observation 12: block_hashes may be empty. From then on the group's window is needed."""
    told = Told()
    told.apply(store(PROMPT, kind="full_attention"))
    assert told.held
    assert told.apply(Stored([], None, PROMPT, BLOCK, group=1, kind="sliding_window", window=5)) == set()
