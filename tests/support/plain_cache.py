"""An engine's cache as plainly as it can be said, to hold the mirror against. Slow, and obviously right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple

from extproc.base import blocks
from extproc.kv_events.engines import Cleared, Event, Removed, Stored, Tier

POOL = "pool"
SIZE = 8  # bytes of a prompt block


class Text:
    """A vocabulary of few tokens whose texts have other lengths, two of them the same."""

    TEXTS: Mapping[int, bytes] = {0: b"", 1: b"a", 2: b"bc", 3: b"bc", 4: b"defg", 5: b"hijklmnop"}

    def decode(self, token_ids: Sequence[int]) -> bytes:
        return b"".join(self.TEXTS[token] for token in token_ids)


class Layout(NamedTuple):
    """What an engine says of a group, and what a hit needs of it."""

    kind: str
    window: int | None
    block: int  # tokens
    needs: int | None  # blocks before a boundary; None for all


ONE_GROUP = {0: Layout("full_attention", None, 2, None)}


@dataclass
class PlainCache:
    """Group 0 shapes the tree. `hash_of` says what an engine calls the block at the end of these tokens.

    A mirror drops the text of blocks some time after they left: `drops` says whether this does so at once or never.
    """

    groups: Mapping[int, Layout] = field(default_factory=lambda: ONE_GROUP)
    hash_of: Callable[[Sequence[int]], int] = len
    drops: bool = True

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.parents: dict[int, int | None] = {}
        self.texts: dict[int, bytes] = {}
        self.tokens: dict[int, list[int]] = {}
        self.copies: dict[int, Counter[int]] = {group: Counter() for group in self.groups}
        self.doubts: set[int] = set()  # blocks of group 0 that were removed since they were stored last

    def apply(self, event: Event) -> None:
        if isinstance(event, Cleared):
            self.clear()
        elif event.tier is not Tier.GPU:
            return
        elif isinstance(event, Removed):
            for block in event.hashes:
                self.copies[event.group] -= Counter([block])
                if event.group == 0:
                    self.doubts.add(block)
            if self.drops:
                self._drop_what_nothing_hangs_on()
        elif event.group == 0:
            self._store(event)
        else:
            self.copies[event.group] += Counter(event.hashes)

    def is_of_another_kind(self, event: Event) -> bool:
        """Whether only an engine that announces removals of last copies would send this (`removals.py`)."""
        copy, removed = deepcopy(self), event.hashes if isinstance(event, Removed) and event.group == 0 else ()
        for block in removed:
            copy.apply(Removed([block]))
            behind = [child for child, parent in copy.parents.items() if parent == block]
            if not copy.copies[0][block] and any(copy.copies[0][child] and child in copy.doubts for child in behind):
                return True
        return False

    def _store(self, event: Stored) -> None:
        if event.parent is not None and event.parent not in self.parents:
            return
        parent = event.parent
        root = str(blocks.root(POOL, event.adapter, event.salt)).encode()
        for place, block in enumerate(event.hashes):
            tokens = event.tokens[place * event.block_size : (place + 1) * event.block_size]
            if block not in self.parents:
                self.parents[block] = parent
                self.tokens[block] = [*([] if parent is None else self.tokens[parent]), *tokens]
                self.texts[block] = (root + b"|" if parent is None else self.texts[parent]) + Text().decode(tokens)
            self.copies[0][block] += 1
            self.doubts.discard(block)
            parent = block

    def _drop_what_nothing_hangs_on(self) -> None:
        kept = {ancestor for block in +self.copies[0] for ancestor in self.path(block)}
        self.parents = {block: parent for block, parent in self.parents.items() if block in kept}
        self.texts = {block: text for block, text in self.texts.items() if block in kept}

    def path(self, block: int) -> list[int]:
        """The blocks of the prompt that ends with this one."""
        path: list[int] = []
        parent: int | None = block
        while parent is not None:
            path.insert(0, parent)
            parent = self.parents[parent]
        return path

    def is_usable(self, block: int) -> bool:
        """Whether every group can go on behind this block."""
        if not all(self.copies[0][before] > 0 for before in self.path(block)):
            return False
        tokens = self.tokens[block]
        for number, group in self.groups.items():
            if number == 0:
                continue
            if len(tokens) % group.block:
                return False
            hashes = [self.hash_of(tokens[:end]) for end in range(group.block, len(tokens) + 1, group.block)]
            if not all(self.copies[number][needed] > 0 for needed in hashes[-(group.needs or len(hashes)) :]):
                return False
        return True

    def chains(self) -> list[list[int]]:
        """The keys of every prompt that is usable as a whole."""
        chains = []
        for block in self.parents:
            if self.is_usable(block):
                root, _, text = self.texts[block].partition(b"|")
                chains.append(blocks.extend(text, int(root), SIZE))
        return chains

    def keys(self) -> set[int]:
        """All keys of usable prompts: shorter prefixes count too, as an index that bisects would have them."""
        return {key for chain in self.chains() for key in chain}
