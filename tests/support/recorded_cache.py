"""The cache of a recorded engine with one group of blocks, to which other things happen than in the recording.

It says what the engine would have said: what a prompt needs and is not there is computed again, what is not there is
not removed. Slow, and plain.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

FIELDS = (
    *("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
    *("extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"),
)
REMOVED = ("type", "block_hashes", "medium", "group_idx")


def named(event: Any) -> dict[str, Any]:
    """An event as engines send it today, whatever its version."""
    if isinstance(event, dict):
        return event
    return dict(zip(FIELDS if event[0] == "BlockStored" else REMOVED, event, strict=False))


class Cache:
    """What an engine of one group holds. It computes again what a prompt needs and is not there, as engines do."""

    def __init__(self, events: Sequence[dict[str, Any]]) -> None:
        self._blocks: dict[Any, dict[str, Any]] = {}  # what the recording says of a block, by its hash
        self._behind: dict[tuple[Any, ...], Any] = {}  # hash of the block with these tokens, behind that one
        self.live: Counter[Any] = Counter()
        for event in events:
            if event["type"] == "BlockStored":
                self._learn(event)

    def _learn(self, event: dict[str, Any]) -> None:
        size, parent = event["block_size"], event["parent_block_hash"]
        extra = event.get("extra_keys") or [None] * len(event["block_hashes"])
        for place, block in enumerate(event["block_hashes"]):
            tokens = event["token_ids"][place * size : (place + 1) * size]
            one = {"block_hashes": [block], "parent_block_hash": parent, "token_ids": tokens}
            self._blocks[block] = event | one | {"extra_keys": [extra[place]]}
            self._behind[parent, tuple(tokens), event.get("lora_name"), repr(extra[place])] = block
            parent = block

    def hear(self, event: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """What it says where the recorded one said this: a block has the copies that it has here."""
        if event["type"] == "AllBlocksCleared":
            self.live.clear()
            yield event
        for block in event.get("block_hashes", ()):
            if event["type"] == "BlockRemoved" and self.live[block]:
                self.live -= Counter([block])
                yield event | {"block_hashes": [block]}
            elif event["type"] == "BlockStored" and not self.live[block]:
                parent = self._blocks[block]["parent_block_hash"]
                yield from self.store([] if parent is None or self.live[parent] else self.path(parent))
                yield from self.store([block])

    def path(self, block: Any) -> list[Any]:
        """The block and those before it, the first one first."""
        path: list[Any] = []
        while block is not None:
            path.insert(0, block)
            block = self._blocks[block]["parent_block_hash"]
        return path

    def store(self, some: Sequence[Any]) -> Iterator[dict[str, Any]]:
        """Compute those of these blocks that are not there."""
        for block in some:
            if not self.live[block]:
                self.live[block] += 1
                yield self._blocks[block]

    def compute(self, tokens: Sequence[int], adapter: str | None, salt: str | None) -> Iterator[dict[str, Any]]:
        """Prefill a prompt, as far as the recording tells its hashes."""
        size = next(iter(self._blocks.values()))["block_size"]
        parent: Any = None
        for start in range(0, len(tokens) - size + 1, size):
            keys = ([adapter] if adapter else []) + ([salt] if salt and not start else [])
            block = self._behind.get((parent, tuple(tokens[start : start + size]), adapter, repr(keys or None)))
            if block is None:
                return
            yield from self.store([block])
            parent = block

    def evict_all(self) -> Iterator[dict[str, Any]]:
        """Everything, leaf by leaf."""
        while self.live:
            yield from self.evict(random.Random(0))

    def evict(self, rng: random.Random) -> Iterator[dict[str, Any]]:
        """Some leaves, then what they leave behind."""
        for _ in range(rng.randint(1, 40)):
            used = {self._blocks[block]["parent_block_hash"] for block in self.live}
            leaves = [block for block in self.live if block not in used]
            if not leaves:
                return
            block = rng.choice(leaves)
            event = self._blocks[block]
            for _ in range(self.live.pop(block)):
                yield {"type": "BlockRemoved", "block_hashes": [block], "medium": event.get("medium")}
