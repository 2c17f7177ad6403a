"""The paged prefix cache of one instance: physical blocks, found again by key, evicted leaf first.

Owns which block holds which key and who uses it. Knows neither tokens nor time nor requests: a key stands for a whole
prefix (a chained hash, or any name of a trace), so equal keys are equal prefixes.

The rules are those of vLLM since 0.24: a free block keeps its key until it is needed for something else; blocks without
a key are reused first, then the others in the order in which they were freed; who frees a chain frees its last block
first, so a block never goes before its children. Two blocks may hold one key when both were computed at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

Key = Hashable


class Block:
    """One physical block. `key` is None until the block is full; `users` counts the requests that hold it."""

    __slots__ = ("key", "users")

    def __init__(self) -> None:
        self.key: Key | None = None
        self.users = 0


class BlockCache:
    """`capacity` blocks (vLLM's `--num-gpu-blocks-override` less one: it reserves a null block)."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a cache needs at least one block, not {capacity}")
        self.capacity = capacity
        self._free: OrderedDict[Block, None] = OrderedDict((Block(), None) for _ in range(capacity))
        self._holders: dict[Key, list[Block]] = {}  # of one key, the oldest copy first

    @property
    def free(self) -> int:
        """Blocks that no request uses, whether they hold a key or not."""
        return len(self._free)

    @property
    def keys(self) -> dict[Key, int]:
        """Copies held of each key."""
        return {key: len(holders) for key, holders in self._holders.items()}

    def prefix(self, keys: Iterable[Key]) -> list[Block]:
        """The blocks that hold the leading keys, up to the first that is not held."""
        found: list[Block] = []
        for key in keys:
            holders = self._holders.get(key)
            if holders is None:
                break
            found.append(holders[0])
        return found

    def use(self, blocks: Iterable[Block]) -> None:
        """Take one use of each block, so that none of them can be evicted."""
        for block in blocks:
            if block.users == 0:
                del self._free[block]
            block.users += 1

    def allocate(self, count: int) -> tuple[list[Block], list[Key]]:
        """`count` blocks for new content, in use by the caller, and the keys evicted to make room, in order.

        Raises:
            MemoryError: fewer than `count` blocks are free; nothing has changed.
        """
        if count > len(self._free):
            raise MemoryError(f"{count} blocks wanted, {len(self._free)} free")
        blocks: list[Block] = []
        evicted: list[Key] = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            if block.key is not None:
                evicted.append(block.key)
                self._forget(block)
            block.users = 1
            blocks.append(block)
        return blocks, evicted

    def store(self, block: Block, key: Key) -> None:
        """From here on, the block (in use, without a key yet) answers for the key."""
        block.key = key
        self._holders.setdefault(key, []).append(block)

    def release(self, chain: Sequence[Block]) -> None:
        """Give back one use of each block of a chain, its last block first: that is what makes eviction leaf first."""
        for block in reversed(chain):
            block.users -= 1
            if block.users == 0:
                self._free[block] = None
                if block.key is None:  # nothing is lost with it
                    self._free.move_to_end(block, last=False)

    def clear(self) -> bool:
        """Forget every key. As in vLLM, refused (False) while any block is in use."""
        if len(self._free) != self.capacity:
            return False
        for block in self._free:
            block.key = None
        self._holders.clear()
        return True

    def _forget(self, block: Block) -> None:
        holders = self._holders[block.key]
        if len(holders) == 1:
            del self._holders[block.key]
        else:
            holders.remove(block)
        block.key = None
