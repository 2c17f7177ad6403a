"""Prefix caches as arrays: the rules of `loadgen.engine.block_cache`, without a physical block for each key.

A leaf never outlives its parent: what is given back goes to the end of the queue with its last block first, and what is
needed is taken from the front. A queue's entries are chains as they were given back; those blocks of an entry that were
used again since belong to a later one, and are passed over.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from loadgen.simulation.keys import KeyArray


class LocalCache:
    """The KV cache of one instance: `capacity` blocks, over keys from 0 to `keys`.

    Unlike in vLLM a key has one copy: who computes what another uses holds a nameless block beside it, which is gone
    when it is given back; who computes what is held unused takes it over, in place of a block of its own.
    """

    def __init__(self, capacity: int, keys: int) -> None:
        self.capacity = capacity
        self._state = np.zeros(keys, np.int16)  # 0: absent; 1: held, unused; n + 1: used by n
        self._given = np.zeros(keys, np.int32)  # in which queue entry a key was given back last
        self._queue: deque[tuple[int, KeyArray]] = deque()
        self._entries = 0
        self._held = 0  # keys
        self._used = 0  # keys that someone uses
        self._nameless = 0  # blocks in use that no key finds

    @property
    def free(self) -> int:
        """Blocks that are not in use, whether a key finds them or not."""
        return self.capacity - self._used - self._nameless

    def prefix(self, keys: KeyArray) -> tuple[int, int]:
        """How many of the leading keys are held, and how many of those are not in use."""
        state = self._state[keys]
        absent = state == 0
        found = int(absent.argmax()) if absent.any() else len(keys)
        return found, int(np.count_nonzero(state[:found] == 1))

    def use(self, keys: KeyArray) -> None:
        """Take one use of each of these keys, all held."""
        state = self._state[keys]
        self._used += int(np.count_nonzero(state == 1))
        self._state[keys] = state + 1

    def allocate(self, count: int) -> list[int]:
        """Take `count` nameless blocks; the keys that were evicted for them, in order.

        There are as many: who admits a task has seen to it.
        """
        self._nameless += count
        needed = self._held + self._nameless - self.capacity
        evicted: list[int] = []
        while needed > 0:
            entry, keys = self._queue.popleft()
            valid = keys[(self._given[keys] == entry) & (self._state[keys] == 1)]
            taken = valid[:needed]
            self._state[taken] = 0
            self._held -= len(taken)
            evicted += taken.tolist()
            if len(valid) > needed:
                self._queue.appendleft((entry, valid[needed:]))
            needed -= len(taken)
        return evicted

    def store(self, keys: KeyArray) -> tuple[list[int], int]:
        """Let keys find nameless blocks, whose user uses the keys from here on.

        Returns the keys that were not held before, and how many of the blocks stay nameless.
        """
        state = self._state[keys]
        new = state == 0
        count = int(np.count_nonzero(new))
        named = int(np.count_nonzero(state <= 1))
        self._used += named
        self._nameless -= named
        self._held += count
        self._state[keys] = state + 1 + new
        fresh: list[int] = (keys if count == len(keys) else keys[new]).tolist()
        return fresh, len(keys) - named

    def release(self, chain: KeyArray, nameless: int) -> None:
        """Give back one use of each key of a chain, and nameless blocks."""
        state = self._state[chain] - 1
        self._state[chain] = state
        unused = chain[state == 1][::-1]
        self._used -= len(unused)
        self._nameless -= nameless
        self._entries += 1
        self._given[unused] = self._entries
        self._queue.append((self._entries, unused))


class GlobalTier:
    """Host memory of the cluster: the `capacity` blocks last used, over keys from 0 to `keys`."""

    def __init__(self, capacity: int, keys: int) -> None:
        self._capacity = capacity
        self._used_in = np.zeros(keys, np.int32)  # the queue entry of a key's last use; 0: absent
        self._queue: deque[tuple[int, KeyArray]] = deque()
        self._entries = 0
        self._held = 0

    def prefix(self, keys: KeyArray) -> int:
        """How many of the leading keys it holds."""
        absent = self._used_in[keys] == 0
        return int(absent.argmax()) if absent.any() else len(keys)

    def use(self, keys: KeyArray) -> None:
        """Hold the keys of a chain, from its first on, as the last used."""
        self._held += int(np.count_nonzero(self._used_in[keys] == 0))
        self._entries += 1
        self._used_in[keys] = self._entries
        self._queue.append((self._entries, keys[::-1]))
        while self._held > self._capacity:
            entry, oldest = self._queue.popleft()
            valid = oldest[self._used_in[oldest] == entry]
            surplus = self._held - self._capacity
            taken = valid[:surplus]
            self._used_in[taken] = 0
            self._held -= len(taken)
            if len(valid) > surplus:
                self._queue.appendleft((entry, valid[surplus:]))
