"""A model of one vLLM instance: continuous batching with chunked prefill over a prefix cache. No I/O, no clock.

A caller submits requests, begins a step, waits until it `ends` (really, or on a virtual clock), finishes it, and
begins the next. The live engine (`engine.py`) and a discrete-event simulation drive the same code.

Owns the queues, the token budget and what a step does to the cache. Knows no tokens: the whole reply of a request is
known when it arrives (it is generated from a seed), so the keys of all its blocks are too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from loadgen.cache import Block, BlockCache, Key
from loadgen.timing import Profile


@dataclass(eq=False, slots=True, kw_only=True)
class Request:
    """One generation. Lengths in tokens; both are at least 1.

    `keys` names the whole blocks of prompt plus reply, in order: all those that could be stored, which is every whole
    block of the first `prompt + reply - 1` tokens, because the last sampled token is never computed.
    """

    prompt: int
    reply: int
    keys: Sequence[Key]
    computed: int = 0  # tokens whose KV is in `blocks`
    sampled: int = 0  # tokens of the reply so far
    hit: int = 0  # tokens of the prompt found in the cache
    stored: int = 0  # leading blocks that hold a key
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


@dataclass(frozen=True, slots=True)
class Step(Generic[R_co]):
    """What the instance computes next, and until when. `events` are published when the step has ended."""

    ends: float
    scheduled: Sequence[R_co]
    events: Sequence[Event[R_co]]


@dataclass(frozen=True, slots=True)
class Limits:
    """vLLM's scheduler settings, with its defaults for a GPU."""

    batch_tokens: int = 8192  # --max-num-batched-tokens
    sequences: int = 1024  # --max-num-seqs


class Instance(Generic[R]):
    """The scheduler. One step at a time: `begin`, then `finish` of that step, then `begin` again."""

    def __init__(self, profile: Profile, blocks: int, block_size: int = 16, limits: Limits | None = None) -> None:
        self.profile = profile
        self.block_size = block_size
        self.limits = limits or Limits()
        self.cache = BlockCache(blocks)
        self.waiting: deque[R] = deque()
        self.running: list[R] = []
        self.queried = 0  # prompt tokens of all admitted requests ...
        self.hits = 0  # ... and how many of them were cached
        self._promised = 0  # blocks that running requests still have to allocate
        self._pending: list[Event[R]] = []  # events that no step has published yet

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

    def abort(self, request: R) -> None:
        """Forget a request wherever it is; its blocks are free at once and keep their keys. Idempotent."""
        if request in self.running:
            self._retire(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def clear(self) -> bool:
        """Empty the prefix cache; False when requests run. As in vLLM, the next step publishes it, not this call."""
        cleared = self.cache.clear()
        if cleared:
            self._pending.append(Cleared())
        return cleared

    def begin(self, now: float) -> Step[R] | None:
        """Schedule one step that starts at `now` (seconds on the caller's clock); None when there is nothing to do."""
        budget = self.limits.batch_tokens
        scheduled: list[R] = []
        chunks: list[tuple[int, int]] = []
        contexts: list[int] = []

        # Running requests come first and in order. Only the last of them can be in prefill: admission stops when the
        # budget is spent. So decodes come first.
        for request in self.running:
            if request.sampled:
                new = 1
                contexts.append(request.computed + 1)
            else:
                new = min(request.prompt - request.computed, budget)
                if new == 0:
                    break
                chunks.append((new, request.computed))
            budget -= new
            self._compute(request, new)
            scheduled.append(request)
        while self.waiting and budget and len(self.running) < self.limits.sequences and self._admit(self.waiting[0]):
            request = self.waiting.popleft()
            new = min(request.prompt - request.computed, budget)
            chunks.append((new, request.computed))
            budget -= new
            self._compute(request, new)
            scheduled.append(request)

        if not scheduled:
            return None
        events, self._pending = self._pending, []
        return Step(now + self.profile.seconds(chunks, contexts), scheduled, events)

    def finish(self, step: Step[R]) -> list[R]:
        """Account for a step that has ended: the requests that sampled one more token.

        A request is finished, and its blocks are free, when `sampled` has reached `reply`.
        """
        sampled: list[R] = []
        for request in step.scheduled:
            if request.computed < request.prompt or not request.blocks:
                continue  # a prefill that goes on, or aborted since
            request.sampled += 1
            sampled.append(request)
            if request.sampled == request.reply:
                self._retire(request)
        return sampled

    def _admit(self, request: R) -> bool:
        """Start a request if its whole KV fits beside what is promised to the others: nothing is ever preempted."""
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
        self.running.append(request)
        return True

    def _compute(self, request: R, new: int) -> None:
        """Give `new` tokens their blocks, and a key to each block that they fill."""
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
        self.running.remove(request)
        self._promised -= self._size(request) - len(request.blocks)
        self.cache.release(request.blocks)
        request.blocks = []

    def _size(self, request: R) -> int:
        """Blocks that a request needs over its life."""
        return -(-(request.prompt + request.reply - 1) // self.block_size)
