"""The mirror against a plain model of an engine's cache, and each of its promises alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.base import blocks
from extproc.base.errors import UnknownToken
from extproc.kv_events import block_tree, mirror
from extproc.kv_events.engines import Cleared, Event, Removed, Stored, Tier, UnusableEvents, vllm
from extproc.kv_events.groups import lookback
from extproc.kv_events.mirror import Mirror
from extproc.prompts.tokenizer.vocabulary import Vocabulary
from tests.support import kv_recordings
from tests.support.plain_cache import POOL, SIZE, PlainCache, Text

BLOCK = 2  # tokens of an engine block


def hash_of(tokens: Sequence[int], root: str = "") -> int:
    """A block's hash covers all of the prompt up to it, as an engine's does."""
    return blocks.root(root, repr(list(tokens)))


def store(tokens: Sequence[int], first: int = 0, *, group: int = 0, salt: str | None = None, **more: object) -> Stored:
    """The blocks of a prompt from block `first` on."""
    ends = range((first + 1) * BLOCK, len(tokens) + 1, BLOCK)
    return Stored(
        [hash_of(tokens[:end], salt or "") for end in ends],
        hash_of(tokens[: first * BLOCK], salt or "") if first else None,
        tokens[first * BLOCK : len(ends) * BLOCK + first * BLOCK],
        BLOCK,
        salt=salt if not first else None,
        group=group,
        **more,  # type: ignore[arg-type]
    )


def remove(tokens: Sequence[int], *places: int, group: int = 0) -> Removed:
    """Blocks of a prompt, by their places."""
    return Removed([hash_of(tokens[: (place + 1) * BLOCK]) for place in places], group=group)


class Told:
    """A mirror, and an index that believes its deltas and checks that they keep the index's contract."""

    def __init__(self) -> None:
        self.mirror = Mirror(POOL, Text(), SIZE)
        self.held: set[int] = set()

    def apply(self, *events: Event, before: dict[int, int] | None = None) -> set[int]:
        """Apply a batch. `before` says of keys which key precedes them in their chain."""
        for event in events:
            self.mirror.apply(event)
        delta = self.mirror.drain()
        assert not set(delta.add) & set(delta.remove)
        if delta.forget:
            self.held.clear()
        for key in delta.remove:
            self.held.remove(key)
            assert before is None or not any(before.get(other) == key for other in self.held)
        for key in delta.add:
            assert key not in self.held
            assert before is None or before.get(key) is None or before[key] in self.held
            self.held.add(key)
        assert self.held == set(self.mirror.held)
        return self.held


def chain(tokens: Sequence[int], salt: str | None = None, adapter: str | None = None) -> list[int]:
    return blocks.extend(Text().decode(tokens), blocks.root(POOL, adapter, salt), SIZE)


PROMPT = [5, 4] * 8  # 16 tokens, 8 engine blocks of 13 bytes, 104 bytes


# The plain model. Few prompts, most of which begin alike, so that most events meet what others did. Of their tokens two
# have the same text, so that different engine blocks complete the same prompt blocks.

PROMPTS = [
    [token for token in tokens for _ in range(BLOCK)]
    for tokens in (
        [2, 2, 2, 2, 2, 2],
        [2, 2, 2, 5, 5],
        [2, 5, 5, 3, 3],
        [2, 3, 3, 2, 2, 2],
        [3, 2, 2, 2, 2],
        [5, 5, 5, 4],
    )
]
KINDS = {0: ("full_attention", None), 1: ("sliding_window", 3 * BLOCK + 1), 2: ("mla_attention", None)}
LAST = 5  # place of a prompt's last block, at most


def events(*groups: int) -> st.SearchStrategy[list[list[Event]]]:
    """Batches."""
    prompt, place, group = st.sampled_from(PROMPTS), st.integers(0, LAST), st.sampled_from(groups)

    def stored(tokens: list[int], first: int, group: int) -> Event:
        kind, window = KINDS[group]
        return store(tokens, min(first, len(tokens) // BLOCK - 1), group=group, kind=kind, window=window)

    def removed(tokens: list[int], place: int, group: int) -> Event:
        return remove(tokens, min(place, len(tokens) // BLOCK - 1), group=group)

    def computed(tokens: list[int], first: int) -> list[Event]:
        return [stored(tokens, first, group) for group in groups]

    def vacated(tokens: list[int], group: int) -> Event:
        return remove(tokens, *reversed(range(len(tokens) // BLOCK)), group=group)

    some: st.SearchStrategy[list[Event]] = st.one_of(
        st.builds(computed, prompt, st.just(0)),
        st.builds(computed, prompt, place),
        st.builds(stored, prompt, place, group).map(lambda event: [event]),
        st.builds(removed, prompt, place, group).map(lambda event: [event]),
        st.builds(removed, prompt, place, group).map(lambda event: [event]),
        st.builds(vacated, prompt, group).map(lambda event: [event]),
        st.sampled_from([[Cleared()], *(9 * [[]])]),
    )
    batch = st.lists(some, min_size=1, max_size=3).map(lambda parts: [event for part in parts for event in part])
    return st.lists(batch, min_size=3, max_size=20)


def predecessors(cache: PlainCache, known: dict[int, int]) -> dict[int, int]:
    for keys in cache.chains():
        known.update(zip(keys[1:], keys, strict=False))
    return known


@pytest.fixture(autouse=True, scope="module")
def short_runs() -> Iterator[None]:
    """Runs so short that prompts have several."""
    length, block_tree.LENGTH = block_tree.LENGTH, 2
    yield
    block_tree.LENGTH = length


@settings(deadline=None)
@given(events(0))
def test_it_holds_what_a_plain_cache_holds(batches: list[list[Event]]) -> None:
    """Any stores, removals and clears, in any order, leave exactly the keys of the prompts that can be reused."""
    told, plain = Told(), PlainCache()
    before: dict[int, int] = {}
    for batch in batches:
        for event in batch:
            plain.apply(event)
            predecessors(plain, before)
        assert told.apply(*batch, before=before) == plain.keys()
        assert told.mirror.blocks == len(+plain.copies[0])


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


@settings(deadline=None)
@given(events(0), st.integers(0, 10))
def test_after_forgetting_it_holds_part_of_the_truth(batches: list[list[Event]], forgotten: int) -> None:
    """What is known of an instance may be forgotten at any time; what is held from then on is never more than true."""
    told, truth = Told(), PlainCache()
    for place, batch in enumerate(batches):
        if place == forgotten:
            told.mirror.forget()
        for event in batch:
            truth.apply(event)
        assert told.apply(*batch) <= truth.keys()
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
    delta = told.mirror.drain()
    assert (delta.forget, delta.add, delta.remove) == (False, [], [])


def test_what_is_removed_and_stored_in_one_batch_is_no_change() -> None:
    """Observation 1: a batch removes before it stores; what the index is told is the net of both."""
    told = Told()
    told.apply(store(PROMPT))
    for event in (remove(PROMPT, 7, 6), store(PROMPT, 6)):
        told.mirror.apply(event)
    delta = told.mirror.drain()
    assert (delta.add, delta.remove) == ([], [])


def test_a_block_removed_before_its_children_takes_them_along_and_brings_them_back() -> None:
    """Observation 6 says that engines do not do it; should one, the hit ends at the hole until it is filled."""
    told = Told()
    told.apply(store(PROMPT))
    assert told.apply(remove(PROMPT, 2)) == set(chain(PROMPT)[: 2 * 13 // SIZE])
    assert told.mirror.blocks == 7
    assert told.apply(store(PROMPT[: 3 * BLOCK], 2)) == set(chain(PROMPT))


def test_behind_an_unknown_parent_nothing_is_held() -> None:
    """A late joiner does not know what comes before, so not what it is either."""
    told = Told()
    told.mirror.apply(store(PROMPT, 3))
    delta = told.mirror.drain()
    assert (delta.add, delta.ignored) == ([], {"unknown_parent": 5})
    assert told.apply(remove(PROMPT, 3)) == set()


def test_a_clear_empties_everything() -> None:
    """And what follows in the same batch counts again."""
    told = Told()
    told.apply(store(PROMPT), store(PROMPT))
    assert told.apply(Cleared(), store(PROMPT[:4])) == set(chain(PROMPT[:4]))
    assert told.apply(remove(PROMPT, 1, 0)) == set()


def test_adapter_and_salt_have_chains_of_their_own() -> None:
    """Equal text under another adapter or salt is another prompt."""
    told = Told()
    assert told.apply(store(PROMPT, salt="s")) == set(chain(PROMPT, salt="s"))
    stored = store(PROMPT)
    told.apply(Stored([block + 1 for block in stored.hashes], None, PROMPT, BLOCK, adapter="ad"))
    assert told.held == set(chain(PROMPT, salt="s")) | set(chain(PROMPT, adapter="ad"))


def test_adapters_are_announced_once() -> None:
    """The index is told of a name when it is first seen; a mirror that forgets keeps it."""
    told = Told()
    told.mirror.apply(Stored([1], None, [5, 5], BLOCK, adapter="ad"))
    assert told.mirror.drain().adapters == ["ad"]
    told.mirror.forget()
    told.mirror.apply(Stored([1], None, [5, 5], BLOCK, adapter="ad"))
    assert told.mirror.drain().adapters == []
    assert list(told.mirror.adapters) == ["ad"]


def test_a_prompt_is_held_up_to_its_first_image() -> None:
    """What lies behind an image is not text alone; nor are the blocks that continue it."""
    told = Told()
    event = store(PROMPT[: 6 * BLOCK])
    told.mirror.apply(Stored(event.hashes, None, event.tokens, BLOCK, plain=3))
    told.mirror.apply(store(PROMPT, 6))
    delta = told.mirror.drain()
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
    delta = strict.drain()
    assert delta.add == chain(PROMPT[:4])
    assert delta.ignored == {"unknown_token": 3}


def test_tokens_that_do_not_fill_the_blocks_are_ignored() -> None:
    """Which token belongs to which block is then unknown."""
    told = Told()
    told.mirror.apply(Stored([1, 2], None, PROMPT[:5], BLOCK))
    told.mirror.apply(Stored([3], None, [], 0))
    delta = told.mirror.drain()
    assert (delta.add, delta.ignored) == ([], {"misaligned": 2})


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


def test_no_engine_has_hundreds_of_groups() -> None:
    """A flood of group numbers ends in an error, not in memory."""
    with pytest.raises(UnusableEvents) as caught:
        Told().apply(*(Stored([1], None, [5, 5], BLOCK, group=group) for group in range(100)))
    assert caught.value.cause == "too_many_groups"


@pytest.mark.parametrize(
    ("kind", "window", "block_size", "blocks_needed"),
    [
        (None, None, 16, None),
        ("full_attention", None, 16, None),
        ("mla_attention", None, 16, None),
        ("sink_full_attention", None, 16, None),
        ("sliding_window", 256, 32, 8),
        ("sliding_window", 257, 32, 8),
        ("sliding_window", 258, 32, 9),
        ("sliding_window_mla", 128, 16, 8),
        ("sliding_window", 1, 16, 1),
        ("sliding_window", None, 16, None),
        ("mamba", None, 544, 1),
        ("chunked_local_attention", None, 16, None),
        ("a kind of tomorrow", 5, 16, None),
    ],
)
def test_how_far_a_group_looks_back(
    kind: str | None, window: int | None, block_size: int, blocks_needed: int | None
) -> None:
    """As in vLLM; what does not say counts as keeping whole prompts."""
    assert lookback(kind, window, block_size) == blocks_needed


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


def test_every_recorded_removal_names_a_block_that_is_held() -> None:
    """Observations 5 and 6: with copies counted nothing is removed that is not there, and no block before its child."""
    vocabulary = Vocabulary.load(kv_recordings.MODEL)
    for name in ("0.11.2/B_evict", "0.24.0/B_evict", "0.32.0/B_evict"):
        recorded = Mirror(POOL, vocabulary)
        for payload in kv_recordings.payloads(name):
            for event in vllm.decode(payload).events:
                before = recorded.blocks
                recorded.apply(event)
                if isinstance(event, Removed):
                    assert recorded.blocks == before - 1
            reachable = sum(run.reach for run in recorded._forest.all())
            assert reachable == recorded.blocks
