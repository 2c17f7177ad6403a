"""A model of one vLLM instance: its scheduler over a prefix cache of physical blocks. No I/O, no clock.

Owns what a step does to the cache, and tells of it in events as vLLM does. Knows no tokens: the whole reply of a
request is known when it arrives (it is generated from a seed), so the keys of all its blocks are too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from loadgen.engine import scheduler
from loadgen.engine.block_cache import Block, BlockCache, Key
from loadgen.engine.scheduler import Limits, Scheduler, Task
from loadgen.engine.timing import Accelerator


@dataclass(eq=False, slots=True, kw_only=True)
class Request(Task):
    """One generation.

    `keys` names the whole blocks of prompt plus reply, in order: all those that could be stored, which is every whole
    block of the first `prompt + reply - 1` tokens, because the last sampled token is never computed.
    """

    keys: Sequence[Key]
    blocks: list[Block] = field(default_factory=list)


R = TypeVar("R", bound=Request)
R_co = TypeVar("R_co", bound=Request, covariant=True)


@dataclass(frozen=True, slots=True)
class Stored(Generic[R_co]):
    """Blocks `first` to `first + count` of a request became full and can be found from here on."""

    request: R_co
    first: int
    count: int

    @property
    def keys(self) -> Sequence[Key]:
        return self.request.keys[self.first : self.first + self.count]

    @property
    def parent(self) -> Key | None:
        """The key of the block before, None at the start of a prompt."""
        return self.request.keys[self.first - 1] if self.first else None


@dataclass(frozen=True, slots=True)
class Removed:
    """One copy of a key was evicted."""

    key: Key


@dataclass(frozen=True, slots=True)
class Cleared:
    """Every key was forgotten."""


Event = Stored[R_co] | Removed | Cleared


Step = scheduler.Step[R, Event[R]]


class Instance(Scheduler[R, Event[R]]):
    """The scheduler of one instance and its cache of `blocks` blocks."""

    def __init__(self, profile: Accelerator, blocks: int, block_size: int = 16, limits: Limits | None = None) -> None:
        super().__init__(profile, limits)
        self.block_size = block_size
        self.cache = BlockCache(blocks)
        self.queried = 0  # prompt tokens of all admitted requests ...
        self.hits = 0  # ... and how many of them were cached
        self._promised = 0  # blocks that running requests still have to allocate

    @property
    def usage(self) -> float:
        """Share of the blocks in use by requests, 0 to 1."""
        return 1 - self.cache.free / self.cache.capacity

    def submit(self, request: R) -> None:
        """Queue a request.

        Raises:
            ValueError: it could not run even alone, because its KV is larger than the cache.
        """
        if self._size(request) > self.cache.capacity:
            raise ValueError(f"{request.prompt} + {request.reply} tokens do not fit {self.cache.capacity} blocks")
        self.waiting.append(request)

    def clear(self) -> bool:
        """Empty the prefix cache; False when requests run. As in vLLM, the next step publishes it, not this call."""
        cleared = self.cache.clear()
        if cleared:
            self._pending.append(Cleared())
        return cleared

    def _admit(self, request: R, now: float) -> bool:
        # The last token of a prompt is always computed, for there is nothing to sample from otherwise.
        found = self.cache.prefix(request.keys[: (request.prompt - 1) // self.block_size])
        size = self._size(request)
        unused = sum(1 for block in found if not block.users)
        if size - len(found) + unused + self._promised > self.cache.free:
            return False
        self.cache.use(found)
        request.blocks = found
        request.stored = len(found)
        request.computed = request.hit = len(found) * self.block_size
        self._promised += size - len(found)
        self.queried += request.prompt
        self.hits += request.hit
        return True

    def _compute(self, request: R, new: int) -> None:
        request.computed += new
        missing = -(-request.computed // self.block_size) - len(request.blocks)
        if missing:
            blocks, evicted = self.cache.allocate(missing)
            self._promised -= missing
            request.blocks += blocks
            self._pending += [Removed(key) for key in evicted]
        full = request.computed // self.block_size
        if full > request.stored:
            for index in range(request.stored, full):
                self.cache.store(request.blocks[index], request.keys[index])
            self._pending.append(Stored(request, request.stored, full - request.stored))
            request.stored = full

    def _retire(self, request: R) -> None:
        self._promised -= self._size(request) - len(request.blocks)
        self.cache.release(request.blocks)
        request.blocks = []

    def _size(self, request: R) -> int:
        """Blocks that a request needs over its life."""
        return -(-(request.prompt + request.reply - 1) // self.block_size)


__all__ = ["Cleared", "Event", "Instance", "Limits", "Removed", "Request", "Step", "Stored"]
