"""A mirror under test: events of prompts written down as tokens, and an index that checks what it is told of them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from extproc.base import blocks
from extproc.kv_events.engines import Cleared, Event, Removed, Stored
from extproc.kv_events.mirror import Mirror
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
