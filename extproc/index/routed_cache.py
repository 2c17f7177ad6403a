"""A router's memory of what it sent where, in place of the events of an engine that sends none (`source: routed`).

What it says is written to the index, so it accounts for every key of every instance. It knows prompts as chains of
keys, and time as seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from extproc.index import Change


class RoutedCache:
    """An estimate of each instance's prefix cache: the newest `capacity_blocks` prompt blocks that were sent to it.

    A block is forgotten `ttl_s` seconds after it was last sent, or when newer ones need its place; then the blocks of
    its chain that follow it are gone already, as in an engine, which evicts leaves first. `writer` is this router's
    name among those that share the index. With several of them, give each its share of the engines' capacity.
    """

    def __init__(self, pool: str, capacity_blocks: int, ttl_s: float, *, writer: str = "") -> None:
        self._pool = pool
        self._capacity = capacity_blocks
        self._ttl_s = ttl_s
        self._writer = writer
        # By instance, key -> when it was last sent; oldest first, and of one prompt the last block first. So whatever
        # is taken from the front, no block outlives one before it in its chain.
        self._sent: dict[str, OrderedDict[int, float]] = {}

    def note(self, instance: str, chain: Sequence[int], now: float) -> Change:
        """A prompt was sent. What of it exceeds the capacity is not remembered."""
        sent = self._sent.setdefault(instance, OrderedDict())
        kept = chain[: self._capacity]
        known = next((i for i, key in enumerate(kept) if key not in sent), len(kept))  # none beyond it is remembered
        added = kept[known:]
        sent.update((key, now) for key in reversed(added))
        for key in reversed(kept[:known]):
            sent[key] = now
            sent.move_to_end(key)
        return self._change(instance, add=added, remove=self._evict(sent, now))

    def expire(self, now: float) -> list[Change]:
        """Forget what is too old. Call it from time to time; a second late is a second longer remembered."""
        changes = [self._change(instance, remove=self._evict(sent, now)) for instance, sent in self._sent.items()]
        self._sent = {instance: sent for instance, sent in self._sent.items() if sent}
        return [change for change in changes if change.remove]

    def replay(self, instance: str) -> Change:
        """Everything again, for an index that lost it (`IndexLost`) or does not know this instance yet."""
        return self._change(instance, forget=True, add=list(reversed(self._sent.get(instance, {}))))

    def drop(self, instance: str) -> Change:
        """The instance left the pool, or restarted with an empty cache."""
        self._sent.pop(instance, None)
        return self._change(instance, forget=True)

    def sizes(self) -> Mapping[str, int]:
        """Blocks remembered, by instance."""
        return {instance: len(sent) for instance, sent in self._sent.items()}

    def _evict(self, sent: OrderedDict[int, float], now: float) -> list[int]:
        evicted: list[int] = []
        while sent:
            key, at = next(iter(sent.items()))
            if len(sent) <= self._capacity and now - at < self._ttl_s:
                break
            del sent[key]
            evicted.append(key)
        return evicted

    def _change(
        self, instance: str, *, forget: bool = False, add: Sequence[int] = (), remove: Sequence[int] = ()
    ) -> Change:
        return Change(self._pool, instance, forget=forget, add=add, remove=remove, writer=self._writer)
