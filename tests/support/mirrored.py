"""A mirror under test: events of prompts written down as tokens, and an index that checks what it is told of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from extproc.base import blocks
from extproc.kv_events.engines import Cleared, Event, Removed, Stored
from extproc.kv_events.mirror import Delta, Mirror
from tests.support.plain_cache import POOL, SIZE, Layout, PlainCache, Text

BLOCK = 2  # tokens of an engine block


def hash_of(tokens: Sequence[int], root: str = "") -> int:
    """A block's hash covers all of the prompt up to it, as an engine's does."""
    return blocks.root(root, repr(list(tokens)))


def store(
    tokens: Sequence[int],
    first: int = 0,
    *,
    group: int = 0,
    block: int = BLOCK,
    salt: str | None = None,
    **more: object,
) -> Stored:
    """The blocks of a prompt from block `first` on."""
    ends = range((first + 1) * block, len(tokens) + 1, block)
    return Stored(
        [hash_of(tokens[:end], salt or "") for end in ends],
        hash_of(tokens[: first * block], salt or "") if first else None,
        tokens[first * block : (first + len(ends)) * block],
        block,
        salt=salt if not first else None,
        group=group,
        **more,
    )


def store_last(tokens: Sequence[int], count: int, *, first: int = 0, block: int = BLOCK, **more: Any) -> Stored:
    """The same of a group that keeps only the last blocks: its tokens are those of all."""
    stored = store(tokens, first, block=block, **more)
    return replace(stored, hashes=stored.hashes[max(0, len(stored.hashes) - count) :])


def remove(tokens: Sequence[int], *places: int, group: int = 0, block: int = BLOCK) -> Removed:
    """Blocks of a prompt, by their places."""
    return Removed([hash_of(tokens[: (place + 1) * block]) for place in places], group=group)


def drain(mirror: Mirror) -> Delta:
    """What changed, all of it settled."""
    while mirror.settle():
        pass
    return mirror.drain()


class Told:
    """A mirror, and an index that believes its deltas and checks that they keep the index's contract."""

    def __init__(self) -> None:
        self.mirror = Mirror(POOL, Text(), SIZE)
        self.held: set[int] = set()

    def apply(self, *events: Event, before: Mapping[int, int] | None = None) -> set[int]:
        """Apply a batch, and hold what is told of it."""
        for event in events:
            self.note(event)
        return self.drain(before)

    def note(self, event: Event, *, settle: bool = False) -> None:
        """Apply an event, and work off what follows from it or not yet."""
        self.mirror.apply(event)
        while settle and self.mirror.settle():
            pass

    def drain(self, before: Mapping[int, int] | None = None, *, settle: bool = True) -> set[int]:
        """Hold what is told. `before` says of keys which key precedes them in their chain."""
        delta = drain(self.mirror) if settle else self.mirror.drain()
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
LONG = [5, 4] * 500


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
# Groups with blocks of one size: two that keep whole prompts, one with a window of three blocks.
ALIKE = {
    0: Layout("full_attention", None, BLOCK, None),
    1: Layout("sliding_window", 3 * BLOCK + 1, BLOCK, 3),
    2: Layout("mla_attention", None, BLOCK, None),
}
# Smaller and larger ones: of an eighth and of twice the trunk's, each with a window and without.
MIXED = {
    0: Layout("full_attention", None, BLOCK, None),
    1: Layout("sliding_window", 4, 1, 3),
    2: Layout("mla_attention", None, 1, None),
    3: Layout("mamba", None, 2 * BLOCK, 1),
    4: Layout("full_attention", None, 2 * BLOCK, None),
}


def announced(groups: Mapping[int, Layout]) -> list[Event]:
    """One short prompt in all groups, which makes them known."""
    return [
        Stored([], None, [], group.block, group=number, kind=group.kind, window=group.window)
        for number, group in groups.items()
    ]


def events(groups: Mapping[int, Layout]) -> st.SearchStrategy[list[list[Event]]]:
    """Batches. Of a group that keeps the last blocks some stores name only those."""
    prompt, place, number = st.sampled_from(PROMPTS), st.integers(0, 11), st.sampled_from(sorted(groups))

    def blocks_in(tokens: list[int], number: int) -> int:
        return len(tokens) // groups[number].block

    def stored(tokens: list[int], first: int, number: int) -> Event:
        kind, window, block, _ = groups[number]
        first = min(first, max(blocks_in(tokens, number) - 1, 0))
        return store(tokens, first, group=number, block=block, kind=kind, window=window)

    def removed(tokens: list[int], place: int, number: int) -> Event:
        place = min(place, max(blocks_in(tokens, number) - 1, 0))
        return remove(tokens, place, group=number, block=groups[number].block)

    def computed(tokens: list[int]) -> list[Event]:
        return [stored(tokens, 0, number) for number in groups]

    def vacated(tokens: list[int], number: int) -> Event:
        places = reversed(range(blocks_in(tokens, number)))
        return remove(tokens, *places, group=number, block=groups[number].block)

    some: st.SearchStrategy[list[Event]] = st.one_of(
        st.builds(computed, prompt),
        st.builds(stored, prompt, place, number).map(lambda event: [event]),
        st.builds(removed, prompt, place, number).map(lambda event: [event]),
        st.builds(removed, prompt, place, number).map(lambda event: [event]),
        st.builds(vacated, prompt, number).map(lambda event: [event]),
        st.sampled_from([[Cleared()], *(9 * [[]])]),
    )
    batch = st.lists(some, min_size=1, max_size=3).map(lambda parts: [event for part in parts for event in part])
    return st.lists(batch, min_size=3, max_size=20)


def predecessors(cache: PlainCache, known: dict[int, int]) -> dict[int, int]:
    for keys in cache.chains():
        known.update(zip(keys[1:], keys, strict=False))
    return known
