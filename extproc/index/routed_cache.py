"""What the router itself remembers of what it sent where. It knows prompts as chains of keys, and time as seconds.

`RoutedCache` stands in for an engine's cache where no events come from it (`source: routed`): what it says is written
to the index. `Speculation` bridges the moments between a decision and the first events of its prefill; it is a hint
beside the index and never written to it. They are two classes because the first must account for every key of every
instance, and the second must cost next to nothing on the request path.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

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
        """Forget what is too old. To be called every now and then; a second late is a second longer remembered."""
        changes = [self._change(instance, remove=self._evict(sent, now)) for instance, sent in self._sent.items()]
        self._sent = {instance: sent for instance, sent in self._sent.items() if sent}
        return [change for change in changes if change.remove]

    def replay(self, instance: str) -> Change:
        """Everything once more, for an index that lost it (`IndexLost`), or that is told of this instance first."""
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


class _Sent(NamedTuple):
    instance: str
    keys: Sequence[int]
    at: float


class Speculation:
    """Where prompts of the last moments went, so that a burst of follow-ups finds them before the engine tells of them.

    Only what the index did not know of a prompt is remembered: at most `capacity_blocks` keys, each for at most `ttl_s`
    seconds. A key belongs to the newest prompt that has it, so only the instance that was chosen last is found.
    """

    def __init__(self, capacity_blocks: int = 262_144, ttl_s: float = 5.0) -> None:
        self._capacity = capacity_blocks
        self._ttl_s = ttl_s
        self._prompts: deque[_Sent] = deque()  # the oldest first
        self._newest: dict[int, _Sent] = {}  # by key
        self._blocks = 0  # in all prompts

    def __len__(self) -> int:
        """Blocks remembered; one of two prompts counts twice."""
        return self._blocks

    def expire(self, now: float) -> None:
        """Forget what is too old; `note` and `match` do so too, but an idle pool calls neither."""
        self._trim(now)

    def note(self, instance: str, chain: Sequence[int], known: int, now: float) -> None:
        """A prompt was sent, of which the index knew that the instance holds `known` leading blocks."""
        sent = _Sent(instance, chain[known : known + self._capacity], now)
        if sent.keys:
            self._prompts.append(sent)
            self._blocks += len(sent.keys)
            self._newest.update(dict.fromkeys(sent.keys, sent))
        self._trim(now)

    def match(self, chain: Sequence[int], hits: Mapping[str, int], now: float) -> Mapping[str, int]:
        """`hits` of the index, and what was sent meanwhile: leading blocks by instance name."""
        self._trim(now)
        start = low = max(hits.values(), default=0)
        high = len(chain)
        while low < high:
            middle = (low + high) // 2
            if chain[middle] in self._newest:
                low = middle + 1
            else:
                high = middle
        if low == start:
            return hits
        return {**hits, self._newest[chain[low - 1]].instance: low}

    def _trim(self, now: float) -> None:
        while self._prompts and (self._blocks > self._capacity or now - self._prompts[0].at >= self._ttl_s):
            gone = self._prompts.popleft()
            self._blocks -= len(gone.keys)
            for key in gone.keys:
                if self._newest.get(key) is gone:
                    del self._newest[key]
