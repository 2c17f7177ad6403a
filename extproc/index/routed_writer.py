"""Writes to the index what the router itself sent where (`source: routed`), beside the request path.

`note` is synchronous and bounded; a task writes. Where the index fails or falls behind, what waits is dropped, and each
instance is rewritten from the router's own memory once the index answers again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from extproc.base.errors import IndexLost, IndexUnavailable
from extproc.index import GUESSES, Change, Index
from extproc.index.routed_cache import RoutedCache

_log = logging.getLogger(__name__)

# What an engine is taken to cache: 16,384 blocks of 256 bytes are about a million tokens, the local tier of a large
# model on several GPUs. Too high a value costs a prefill where a hit was expected; too low a value moves a session.
CAPACITY_BLOCKS = 16_384
GUESS_TTL_S = 3600.0  # events end these guesses: time is only for what they cannot tell
TTL_S = 600.0  # nine tenths of reuse come within 100 s (the paper); a tail of hours is not worth guessing at

MAX_WAITING = 1000  # changes; at some hundred requests a second, seconds of them
EXPIRE_S = 5.0
RETRY_S = 0.5


class Recorder:
    """One router's memory of what it sent, and the task that keeps the index equal to it.

    In `routed` pools that is all that the index knows of an instance. In pools that follow events it is a guess about
    what the events cannot tell (`index.GUESSES`), and ends with what they say: then only what was sent since is noted.
    """

    def __init__(self, index: Index, routed: Sequence[str], followed: Sequence[str], writer: str) -> None:
        """Names of the pools whose index is what was routed, and of those that follow events."""
        self._index = index
        self._writer = writer
        self._caches: dict[str, RoutedCache] = {}
        self._guessed: dict[str, RoutedCache] = {}  # of these
        self._waiting: list[Change] = []
        self._sent: list[tuple[str, str, Sequence[int]]] = []  # of followed pools, since the last write
        self._stale: set[tuple[str, str]] = set()  # pool, instance: to be rewritten
        self._known: set[tuple[str, str]] = set()
        self._fresh: set[tuple[str, str]] = set()  # whose guesses begin anew; those of others may have been ended
        self._wake = asyncio.Event()
        self.change(routed, followed)
        self._task = asyncio.create_task(self._run(), name="recorder")

    def change(self, routed: Collection[str], followed: Collection[str]) -> None:
        """Exactly these are the pools from now on; those that left, or are of the other kind now, are forgotten."""
        for pool in list(self._caches):
            if pool not in (followed if pool in self._guessed else routed):
                self.keep(pool, ())
                del self._caches[pool]
                self._guessed.pop(pool, None)
        for pool in [pool for pool in routed if pool not in self._caches]:
            self._caches[pool] = RoutedCache(pool, CAPACITY_BLOCKS, TTL_S, writer=self._writer)
        for pool in [pool for pool in followed if pool not in self._caches]:
            guesses = RoutedCache(pool, CAPACITY_BLOCKS, GUESS_TTL_S, writer=f"{GUESSES}{self._writer}")
            self._caches[pool] = self._guessed[pool] = guesses

    def note(self, pool: str, instance: str, chain: Sequence[int]) -> None:
        """A prompt was sent to an instance: its blocks, or in a followed pool those that events cannot tell of."""
        cache = self._caches.get(pool)
        if cache is None or not chain:
            return
        change = cache.note(instance, chain, time.monotonic())
        if pool in self._guessed and len(self._sent) < MAX_WAITING:
            self._sent.append((pool, instance, chain))
        if (pool, instance) not in self._known:
            for group in (self._known, self._stale, self._fresh):
                group.add((pool, instance))
        if len(self._waiting) >= MAX_WAITING:
            self._stale |= self._known
        if (pool, instance) not in self._stale:
            self._waiting.append(change)
        self._wake.set()

    def keep(self, pool: str, instances: Sequence[str]) -> None:
        """From now on exactly these are in the pool: forget the others."""
        for gone in [key for key in self._known if key[0] == pool and key[1] not in instances]:
            for group in (self._known, self._stale, self._fresh):
                group.discard(gone)
            self._waiting.append(self._caches[pool].drop(gone[1]))
        self._wake.set()

    def begin_anew(self) -> None:
        """All keys have another secret from now on: what was noted is worth nothing."""
        for pool, instance in self._known:
            self._waiting.append(self._caches[pool].drop(instance))
        self._sent.clear()
        self._wake.set()

    def sizes(self, pool: str) -> Mapping[str, int]:
        """Blocks remembered, by instance."""
        return self._caches[pool].sizes() if pool in self._caches else {}

    async def close(self) -> None:
        """Stop writing; what waits is lost, as the router's memory is."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), EXPIRE_S)
            self._wake.clear()
            for cache in self._caches.values():
                self._waiting += cache.expire(time.monotonic())
            stale, self._stale = self._stale, set()
            changes = [change for change in self._waiting if (change.pool, change.instance) not in stale]
            self._waiting = []
            sent, self._sent = self._sent, []
            changes += [self._replay(*key) for key in stale]
            try:
                await self._index.apply(changes)
                self._fresh -= stale
            except IndexLost as lost:
                self._fresh -= stale
                self._begin_anew(lost, sent)
            except IndexUnavailable:
                self._stale |= self._known
                self._wake.set()
                await asyncio.sleep(RETRY_S)

    def _replay(self, pool: str, instance: str) -> Change:
        change = self._caches[pool].replay(instance)
        return change if pool not in self._guessed or (pool, instance) in self._fresh else replace(change, forget=False)

    def _begin_anew(self, lost: IndexLost, sent: Sequence[tuple[str, str, Sequence[int]]]) -> None:
        gone = {(lost.pool, instance) for instance in lost.instances} & self._known
        if lost.pool in self._guessed:
            for _, instance in gone:
                self._guessed[lost.pool].drop(instance)
            for pool, instance, chain in sent:
                if (pool, instance) in gone:
                    self._guessed[pool].note(instance, chain, time.monotonic())
        self._fresh |= gone
        self._stale |= gone
        self._wake.set()
