"""Writes to the index what the router itself sent where (`source: routed`), beside the request path.

`note` is synchronous and bounded; a task writes. Where the index fails or falls behind, what waits is dropped, and each
instance is rewritten from the router's own memory once the index answers again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence

from extproc.base.errors import IndexLost, IndexUnavailable
from extproc.index import Change, Index
from extproc.index.routed_cache import RoutedCache

_log = logging.getLogger(__name__)

# What an engine is taken to cache: 16,384 blocks of 256 bytes are about a million tokens, the local tier of a large
# model on several GPUs. Too high a value costs a prefill where a hit was expected; too low a value moves a session.
CAPACITY_BLOCKS = 16_384
TTL_S = 600.0  # nine tenths of reuse come within 100 s (the paper); a tail of hours is not worth guessing at

MAX_WAITING = 1000  # changes; at some hundred requests a second, seconds of them
EXPIRE_S = 5.0
RETRY_S = 0.5


class Recorder:
    """One router's memory of what it sent, and the task that keeps the index equal to it."""

    def __init__(self, index: Index, pools: Sequence[str], writer: str) -> None:
        self._index = index
        self._caches = {pool: RoutedCache(pool, CAPACITY_BLOCKS, TTL_S, writer=writer) for pool in pools}
        self._waiting: list[Change] = []
        self._stale: set[tuple[str, str]] = set()  # pool, instance: to be rewritten
        self._known: set[tuple[str, str]] = set()
        self._wake = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="recorder")

    def note(self, pool: str, instance: str, chain: Sequence[int]) -> None:
        """A prompt was sent to an instance; pools that follow events are ignored."""
        cache = self._caches.get(pool)
        if cache is None or not chain:
            return
        change = cache.note(instance, chain, time.monotonic())
        if (pool, instance) not in self._known:
            self._known.add((pool, instance))
            self._stale.add((pool, instance))
        if len(self._waiting) >= MAX_WAITING:
            self._stale |= self._known
        if (pool, instance) not in self._stale:
            self._waiting.append(change)
        self._wake.set()

    def keep(self, pool: str, instances: Sequence[str]) -> None:
        """From now on exactly these are in the pool: forget the others."""
        for gone in [key for key in self._known if key[0] == pool and key[1] not in instances]:
            self._known.discard(gone)
            self._stale.discard(gone)
            self._waiting.append(self._caches[pool].drop(gone[1]))
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
            changes += [self._caches[pool].replay(instance) for pool, instance in stale]
            try:
                await self._index.apply(changes)
            except IndexLost as lost:
                self._stale |= {(lost.pool, instance) for instance in lost.instances} & self._known
                self._wake.set()
            except IndexUnavailable:
                self._stale |= self._known
                self._wake.set()
                await asyncio.sleep(RETRY_S)
