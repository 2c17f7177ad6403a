"""What counts as held where a model has several KV-cache groups, and behind holes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.kv_events import mirror
from extproc.kv_events.engines import Stored, UnusableEvents
from tests.support.mirrored import (
    ALIKE,
    BLOCK,
    LONG,
    MIXED,
    PROMPT,
    Told,
    announced,
    chain,
    events,
    hash_of,
    predecessors,
    remove,
    store,
    store_last,
)
from tests.support.plain_cache import SIZE, Layout, PlainCache

pytestmark = pytest.mark.usefixtures("short_runs")


@settings(deadline=None)
@given(st.sampled_from([ALIKE, MIXED, {n: MIXED[n] for n in (0, 1)}, {n: MIXED[n] for n in (0, 3)}]), st.data())
def test_it_holds_what_all_groups_of_a_hybrid_model_hold(groups: Mapping[int, Layout], data: st.DataObject) -> None:
    """Groups that keep whole prompts and groups that keep the last blocks, of equal and of other sizes, each with its
    own removals: a prompt is held up to the last boundary of all of them at which every one can go on."""
    told, plain = Told(), PlainCache(groups, hash_of)
    before: dict[int, int] = {}
    for batch in [announced(groups), *data.draw(events(groups))]:
        for event in batch:
            if plain.is_of_another_kind(event):
                continue
            plain.apply(event)
            predecessors(plain, before)
            told.note(event, settle=data.draw(st.booleans()) or not isinstance(event, Stored))
        assert told.drain(before) == plain.keys()


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


@pytest.mark.parametrize(
    ("trunk", "block", "window"),
    [
        (32, 16, 1024),  # Gemma 4
        (256, 64, 128),  # DeepSeek-V4: its window, and the states of its compressors
        (256, 8, 128),
        (256, 4, 8),
        (16, 64, 256),  # larger than the trunk's
        (48, 32, 96),  # neither divides the other: boundaries every 96 tokens
    ],
)
def test_a_window_of_other_blocks_holds_a_prompt_at_its_end(trunk: int, block: int, window: int) -> None:
    """As many blocks as reach back over the window are needed, each of them, and no others."""
    told = Told()
    prompt = [5, 4] * 1152  # a multiple of all these sizes
    needs = -(-(window - 1) // block)
    group: dict[str, Any] = {"block": block, "kind": "sliding_window", "window": window}
    told.apply(store_last(prompt, needs, **group), store(prompt, group=1, block=trunk, kind="full_attention"))
    assert told.held == set(chain(prompt))
    last = len(prompt) // block - 1
    for place in {last, last - needs // 2, last - needs + 1}:
        assert told.apply(remove(prompt, place, block=block)) == set()
        assert told.apply(store(prompt[: (place + 1) * block], place, **group)) == set(chain(prompt))


@pytest.mark.parametrize("block", [1, 2, 4])
def test_a_window_that_moves_on_with_a_reply(block: int) -> None:
    """Blocks come one by one and leave behind the window: they are followed from boundary to boundary."""
    told = Told()
    group: dict[str, Any] = {"block": block, "kind": "sliding_window", "window": 5}
    told.apply(*(store(PROMPT[:8], **group), store(PROMPT[:8], group=1, kind="full_attention")))
    for end in range(8 + block, 17, block):
        told.apply(store(PROMPT[:end], end // block - 1, **group))
    told.apply(store(PROMPT, 4, group=1, kind="full_attention"))
    assert told.apply(remove(PROMPT, *range(12 // block), block=block)) == set(chain(PROMPT))
    assert told.apply(remove(PROMPT, 12 // block, block=block)) == set()


def test_two_whole_groups_of_other_sizes_end_where_both_do() -> None:
    """A block of the larger size is missing: the hit ends before it, however far the smaller ones go on."""
    told = Told()
    told.apply(store(PROMPT, kind="full_attention"), store(PROMPT, group=1, block=4, kind="mla_attention"))
    assert told.held == set(chain(PROMPT))
    assert told.apply(remove(PROMPT, 2, group=1, block=4)) == set(chain(PROMPT[:8]))


def test_the_last_part_of_a_prompt_stands_beside_the_blocks() -> None:
    """vLLM announces it as a smaller block; what a longer prompt stores there still follows the block before."""
    told = Told()
    whole: dict[str, Any] = {"group": 1, "kind": "mla_attention"}
    told.apply(store(LONG[:6], kind="full_attention"), store(LONG[:4], block=4, **whole), store(LONG[:6], 2, **whole))
    assert told.held == set(chain(LONG[:4]))
    told.apply(store(LONG, 3), store(LONG, 1, block=4, **whole))
    assert told.held == set(chain(LONG))


def test_states_are_kept_at_few_boundaries() -> None:
    """A state-space group announces one block of a step, the last: there a prompt hits, and nowhere before."""
    told = Told()
    told.apply(store(PROMPT, kind="full_attention"), store_last(PROMPT, 1, group=1, block=4, kind="mamba"))
    assert told.held == set(chain(PROMPT))
    assert told.apply(remove(PROMPT, 7)) == set()


def test_a_group_that_appears_in_a_full_cache_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """All groups announce themselves with the first prompt; later every prompt would have to be looked at anew."""
    monkeypatch.setattr(mirror, "LATE", 7)
    told = Told()
    told.apply(store(PROMPT[:14], kind="full_attention"), Stored([], None, [], BLOCK, group=1, kind="mamba"))
    told.apply(store(PROMPT, 7))
    with pytest.raises(UnusableEvents) as caught:
        told.apply(Stored([], None, [], BLOCK, group=2, kind="mamba"))
    assert caught.value.cause == "late_group"


def test_settling_is_done_in_pieces_that_are_whole_prefixes() -> None:
    """A block that much hangs on leaves and comes back: whoever drains in between gets a prefix of the truth."""
    told = Told()
    told.apply(store(LONG))
    before = dict(zip(chain(LONG)[1:], chain(LONG), strict=False))
    for event in (remove(LONG, 1), store(LONG[: 2 * BLOCK], 1)):
        told.mirror.apply(event)
        pieces = 0
        while told.mirror.settle():
            told.drain(before, settle=False)
            pieces += 1
        assert pieces > 10
    assert told.held == set(chain(LONG))


def test_what_is_told_as_stored_is_held_by_then() -> None:
    """A hint ends when the engine speaks: the index must know better at that moment."""
    told = Told()
    told.mirror.apply(store(PROMPT))
    assert told.mirror.drain().stored == []
    while told.mirror.settle():
        pass
    delta = told.mirror.drain()
    assert list(delta.stored) == chain(PROMPT)[-1:] == list(delta.add[-1:])
    assert told.mirror.drain().stored == []
