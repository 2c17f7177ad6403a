"""The mirror against a plain model of an engine's cache, and each of its promises alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.base.errors import UnknownToken
from extproc.index import MAX_ADAPTERS
from extproc.kv_events import mirror
from extproc.kv_events.engines import Cleared, Event, Removed, Stored, Tier, UnusableEvents, vllm
from extproc.kv_events.mirror import Mirror
from extproc.prompts.tokenizer.vocabulary import Vocabulary
from tests.support import kv_recordings, paths
from tests.support.mirrored import BLOCK, PROMPT, Told, chain, drain, events, hash_of, predecessors, remove, store
from tests.support.plain_cache import ONE_GROUP, POOL, SIZE, PlainCache, Text

pytestmark = pytest.mark.usefixtures("short_runs")


@settings(deadline=None)
@given(events(ONE_GROUP))
def test_it_holds_what_a_plain_cache_holds(batches: list[list[Event]]) -> None:
    """Any stores, removals and clears, in any order, leave exactly the keys of the prompts that can be reused."""
    told, plain = Told(), PlainCache()
    before: dict[int, int] = {}
    for batch in batches:
        for event in batch:
            if plain.is_of_another_kind(event):
                continue
            plain.apply(event)
            predecessors(plain, before)
            told.note(event, settle=True)
        assert told.drain(before) == plain.keys()
        assert told.mirror.blocks == len(+plain.copies[0])


@settings(deadline=None)
@given(events(ONE_GROUP))
def test_what_follows_may_be_worked_off_later(batches: list[list[Event]]) -> None:
    """A whole batch is noted before anything follows from it. The text of blocks that left may then still be known."""
    told, least, most = Told(), PlainCache(), PlainCache(drops=False)
    before: dict[int, int] = {}
    for batch in batches:
        for event in batch:
            if not most.is_of_another_kind(event):
                least.apply(event)
                most.apply(event)
                predecessors(most, before)
                told.note(event)
        assert least.keys() <= told.drain(before) <= most.keys()


@settings(deadline=None)
@given(events(ONE_GROUP), st.integers(0, 10))
def test_after_forgetting_it_holds_part_of_the_truth(batches: list[list[Event]], forgotten: int) -> None:
    """What is known of an instance may be forgotten at any time; what is held from then on is never more than true."""
    told, truth = Told(), PlainCache(drops=False)
    for place, batch in enumerate(batches):
        if place == forgotten:
            told.mirror.forget()
        for event in batch:
            if not truth.is_of_another_kind(event):
                truth.apply(event)
                told.note(event)
        assert told.drain() <= truth.keys()
        if place >= forgotten and any(isinstance(event, Cleared) for event in batch):
            forgotten = len(batches)  # a clear: both are empty, and agree from here on
            assert told.held == truth.keys()


# Promises, one by one


def test_prompt_blocks_are_complete_when_their_last_byte_is() -> None:
    """A key appears with the engine block that completes it, whatever the blocks' lengths."""
    told = Told()
    keys = chain(PROMPT)
    assert len(keys) == 13
    for place in range(8):
        told.apply(store(PROMPT[: (place + 1) * BLOCK], place))
        assert told.held == set(keys[: (place + 1) * 13 // SIZE])


def test_a_stored_block_is_held_until_its_last_copy_is_removed() -> None:
    """Observation 5: the same block stored twice and removed once is still there."""
    told = Told()
    told.apply(store(PROMPT), store(PROMPT, 5))
    assert told.apply(remove(PROMPT, 7, 6, 5)) == set(chain(PROMPT))
    assert told.apply(remove(PROMPT, 7, 6, 5)) == set(chain(PROMPT)[: 5 * 13 // SIZE])


def test_a_prompt_stored_again_changes_nothing() -> None:
    """Observation 3: a prompt that is a multiple of the block size stores its last block again."""
    told = Told()
    told.apply(store(PROMPT))
    told.mirror.apply(store(PROMPT, 7))
    delta = drain(told.mirror)
    assert (delta.forget, delta.add, delta.remove) == (False, [], [])


def test_what_is_removed_and_stored_in_one_batch_is_no_change() -> None:
    """Observation 1: a batch removes before it stores; what the index is told is the net of both."""
    told = Told()
    told.apply(store(PROMPT))
    for event in (remove(PROMPT, 7, 6), store(PROMPT, 6)):
        told.mirror.apply(event)
    delta = drain(told.mirror)
    assert (delta.add, delta.remove) == ([], [])


def test_behind_an_unknown_parent_nothing_is_held() -> None:
    """A late joiner does not know what comes before, so not what it is either."""
    told = Told()
    told.mirror.apply(store(PROMPT, 3))
    delta = drain(told.mirror)
    assert (delta.add, delta.ignored) == ([], {"unknown_parent": 5})
    assert told.apply(remove(PROMPT, 3)) == set()


def test_a_clear_empties_everything() -> None:
    """And what follows in the same batch counts again."""
    told = Told()
    told.apply(store(PROMPT), store(PROMPT))
    assert told.apply(Cleared(), store(PROMPT[:4])) == set(chain(PROMPT[:4]))
    assert told.apply(remove(PROMPT, 1, 0)) == set()


def test_what_was_held_before_a_clear_is_freed_in_pieces() -> None:
    """Nothing of it is held from the clear on, and new blocks wait until the old ones are gone."""
    told = Told()
    told.apply(*(Stored([block], None, [5, 4], BLOCK) for block in range(1, 5001)))
    told.mirror.apply(Cleared())
    assert (list(told.mirror.held), told.mirror.blocks, told.mirror.crowded) == ([], 0, True)
    pieces = 0
    while told.mirror.settle():
        pieces += 1
    assert pieces >= 5
    assert not told.mirror.crowded
    assert told.apply(store(PROMPT)) == set(chain(PROMPT))


def test_adapter_and_salt_have_chains_of_their_own() -> None:
    """Equal text under another adapter or salt is another prompt."""
    told = Told()
    assert told.apply(store(PROMPT, salt="s")) == set(chain(PROMPT, salt="s"))
    stored = store(PROMPT)
    told.apply(Stored([block + 1 for block in stored.hashes], None, PROMPT, BLOCK, adapter="ad"))
    assert told.held == set(chain(PROMPT, salt="s")) | set(chain(PROMPT, adapter="ad"))


def of_adapter(name: str, block: int = 1) -> Stored:
    return Stored([block], None, [5, 5], BLOCK, adapter=name)


def test_adapters_are_told_when_a_new_one_is_seen() -> None:
    """All of them each time; nothing where nothing is new."""
    told = Told()
    for name, expected in (("ad", ["ad"]), ("ad", None), ("other", ["ad", "other"]), ("ad", None)):
        told.mirror.apply(of_adapter(name, len(name)))
        assert drain(told.mirror).adapters == expected


def test_an_engine_that_is_cleared_keeps_its_adapters_and_one_that_is_forgotten_does_not() -> None:
    """A clear drops blocks, and the index is told the names again. After forgetting it may be another engine."""
    told = Told()
    told.mirror.apply(of_adapter("ad"))
    drain(told.mirror)
    told.mirror.apply(Cleared())
    assert drain(told.mirror).adapters == ["ad"]
    told.mirror.forget()
    assert drain(told.mirror).adapters is None
    assert list(told.mirror.adapters) == []
    told.mirror.apply(of_adapter("ad"))
    assert drain(told.mirror).adapters == ["ad"]


def test_of_very_many_adapters_the_newest_are_told() -> None:
    """Those that stored something last; and no name that is a document."""
    told = Told()
    for number in range(MAX_ADAPTERS):
        told.mirror.apply(of_adapter(f"ad-{number}", number))
    told.mirror.apply(of_adapter("ad-0", 0))
    told.mirror.apply(of_adapter("one more", MAX_ADAPTERS))
    told.mirror.apply(of_adapter("long" * 1000, MAX_ADAPTERS + 1))
    adapters = drain(told.mirror).adapters or ()
    assert len(adapters) == MAX_ADAPTERS
    assert list(adapters[-2:]) == ["ad-0", "one more"]
    assert "ad-1" not in adapters


def test_a_prompt_is_held_up_to_its_first_image() -> None:
    """What lies behind an image is not text alone; nor are the blocks that continue it."""
    told = Told()
    event = store(PROMPT[: 6 * BLOCK])
    told.mirror.apply(Stored(event.hashes, None, event.tokens, BLOCK, plain=3))
    told.mirror.apply(store(PROMPT, 6))
    delta = drain(told.mirror)
    assert delta.add == chain(PROMPT[: 3 * BLOCK])
    assert delta.ignored == {"not_text": 3, "unknown_parent": 2}


@pytest.mark.parametrize("tier", [Tier.CPU, Tier.STORAGE, Tier.OTHER])
def test_other_tiers_are_not_held(tier: Tier) -> None:
    """Only what lies on the GPU is a local hit, and a removal elsewhere takes nothing from it."""
    told = Told()
    stored = store(PROMPT)
    assert told.apply(Stored(stored.hashes, None, PROMPT, BLOCK, tier=tier)) == set()
    told.apply(stored)
    assert told.apply(Removed(stored.hashes, tier)) == set(chain(PROMPT))


def test_two_tokenisations_of_the_same_text_hold_the_same_keys() -> None:
    """Observation 17: a reply may come back as other tokens. A key goes with the last block that completes it."""
    told = Told()
    other = [3 if token == 2 else token for token in [5, 2, 5, 2]]
    told.apply(store([5, 2, 5, 2]), store(other))
    assert told.held == set(chain(other))
    assert told.apply(remove([5, 2, 5, 2], 1, 0)) == set(chain(other))
    assert told.apply(remove(other, 1, 0)) == set()


def test_a_token_that_the_vocabulary_lacks_ends_the_prompt() -> None:
    """Nothing is guessed: what follows has no bytes."""

    class Strict(Text):
        def decode(self, token_ids: Sequence[int]) -> bytes:
            if 9 in token_ids:
                raise UnknownToken("9")
            return super().decode(token_ids)

    strict = Mirror(POOL, Strict(), SIZE)
    strict.apply(store([*PROMPT[:4], 9, 9, *PROMPT[4:8]]))
    delta = drain(strict)
    assert delta.add == chain(PROMPT[:4])
    assert delta.ignored == {"unknown_token": 3}


def test_tokens_that_do_not_fill_the_blocks_are_ignored() -> None:
    """Which token belongs to which block is then unknown."""
    told = Told()
    told.mirror.apply(Stored([1, 2], None, PROMPT[:5], BLOCK))
    told.mirror.apply(Stored([3], None, [], 0))
    delta = drain(told.mirror)
    assert (delta.add, delta.ignored) == ([], {"misaligned": 3})


@pytest.mark.parametrize(
    "contradiction",
    [
        [store(PROMPT), Stored([hash_of(PROMPT[:8])], None, PROMPT[:2], BLOCK)],
        [store(PROMPT), Stored([77, hash_of(PROMPT[:8])], None, PROMPT[:4], BLOCK)],
        [Stored([1, 1], None, PROMPT[:4], BLOCK)],
        [Stored([1], None, PROMPT[:2], BLOCK), Stored([2, 1], 1, PROMPT[:4], BLOCK)],
    ],
)
def test_one_hash_for_two_places_is_a_contradiction(contradiction: list[Event]) -> None:
    """A hash stands for a block and all before it. An engine that does not chain its hashes cannot be mirrored."""
    told = Told()
    with pytest.raises(UnusableEvents) as caught:
        told.apply(*contradiction)
    assert caught.value.cause == "contradiction"


def test_an_engine_that_only_stores_reaches_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mirror takes so much memory and no more, of any group."""
    monkeypatch.setattr(mirror, "MEMORY", 100_000)
    with pytest.raises(UnusableEvents) as caught:
        Told().apply(*(Stored([block], None, [5, 5], BLOCK) for block in range(1, 10_000)))
    assert caught.value.cause == "too_many_blocks"
    told = Told()
    told.apply(Stored([1], None, [5, 5], BLOCK, group=0))
    with pytest.raises(UnusableEvents) as caught:
        told.apply(*(Stored([block], None, [5, 5], BLOCK, group=1) for block in range(1, 10_000)))
    assert caught.value.cause == "too_many_blocks"


def test_every_recorded_removal_names_a_block_that_is_held() -> None:
    """Observations 5 and 6: with copies counted nothing is removed that is not there, and no block before its child."""
    vocabulary = Vocabulary.load(paths.MODEL)
    for name in ("0.11.2/B_evict", "0.24.0/B_evict", "0.32.0/B_evict"):
        recorded = Mirror(POOL, vocabulary)
        for payload in kv_recordings.payloads(name):
            for event in vllm.decode(payload).events:
                before = recorded.blocks
                recorded.apply(event)
                if isinstance(event, Removed):
                    assert recorded.blocks == before - 1
            drain(recorded)
            runs = {id(run): run for run in recorded._forest._runs.values()}
            assert sum(run.counted for run in runs.values()) == recorded.blocks
