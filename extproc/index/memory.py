"""The index embedded in one process: a dictionary from block key to the set of its holders, as a bit mask.

It never suspends, so the discrete-event simulator may drive its coroutines without a loop; `Holders` is the same
without them. It knows no time: reports stay until replaced, because their follower lives and dies with this process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set

from extproc.base.errors import IndexLost
from extproc.base.model import EventReport
from extproc.index import GUESSES, MAX_ADAPTERS, Change
from extproc.index.announced_adapters import Adapters
from extproc.index.answers import Answers, totals

# The keys of a pool lie in this many dictionaries, so that neither growing one nor sweeping one takes longer than about
# a millisecond, however many keys there are (a million: a thousand in each). A key's high bits say which: dictionaries
# place their entries by the low ones, where the keys of one dictionary must differ.
SHARDS = 1024
SHIFT = 64 - 10

# Masks that are shared. Few sets of holders are common; beyond this number the table starts empty again.
SHARED_MASKS = 4096

MAX_RESPONSES = 100_000  # of a pool: about 20 MB


class Holders:
    """Who holds what in one pool. A holder is a bit; to forget it, the bit is given up and the keys are swept later."""

    def __init__(self) -> None:
        self._shards: list[dict[int, int]] = [{} for _ in range(SHARDS)]
        self._bits: dict[tuple[str, str], int] = {}  # (instance, writer) -> its bit, as a number of one bit
        self._ended: set[tuple[str, str]] = set()  # guesses that the instance's own writer ended
        self._instances: list[str] = []  # by position of the bit
        self._counts: list[int] = []  # keys held, by position of the bit
        self._free: list[int] = []  # positions that no key mentions
        self._live = 0  # the bits in use
        self._dead = 0  # given up, but perhaps still in some keys
        self._sweep: Iterator[None] | None = None
        self._masks: dict[int, int] = {}  # equal masks are one object: 8 bytes a key and not 40
        self._answers = Answers(self._names, int.bit_count)

    def match(self, chain: Sequence[int]) -> dict[str, int]:
        """See `Index.match`."""
        answers: list[tuple[int, int]] = []
        if chain and (first := self._holders(chain[0])):
            last = len(chain) - 1
            rest = self._holders(chain[last])
            self._explore(chain, 0, first, last, rest, answers)
            answers.append((rest, len(chain)))
        return self._answers.merge(answers)

    def apply(self, change: Change) -> bool:
        """See `Index.apply`; False where the writer must begin anew. Each call also sweeps one shard while there is
        something to sweep."""
        holder = (change.instance, change.writer)
        if change.forget:
            self._forget(holder)
        elif holder in self._ended:
            return False
        bit = self._bits.get(holder, 0)
        if bit and change.remove:
            self._remove(bit, change.remove)
        if change.add:
            self._add(bit or self._allot(holder), change.add)
        self._sweep_some()
        return True

    def sizes(self) -> dict[str, int]:
        """See `Index.sizes`."""
        return totals((holder, self._counts[bit.bit_length() - 1]) for holder, bit in self._bits.items())

    def _holders(self, key: int) -> int:
        return self._shards[key >> SHIFT].get(key, 0) & self._live

    def _explore(
        self, chain: Sequence[int], low: int, at_low: int, high: int, at_high: int, answers: list[tuple[int, int]]
    ) -> None:
        """Note which holders have block `low` but not block `high`, and how far each gets.

        A holder of a block holds all before it, so where both ends have the same holders, nothing changes between them.
        """
        if at_low == at_high:
            return
        if high - low == 1:
            answers.append((at_low & ~at_high, high))
            return
        middle = (low + high) // 2
        at_middle = self._holders(chain[middle])
        self._explore(chain, low, at_low, middle, at_middle, answers)
        self._explore(chain, middle, at_middle, high, at_high, answers)

    def _names(self, mask: int) -> list[str]:
        return [self._instances[position] for position in _positions(mask)]

    def _allot(self, holder: tuple[str, str]) -> int:
        if self._free:
            position = self._free.pop()
            self._instances[position] = holder[0]
        else:
            position = len(self._instances)
            self._instances.append(holder[0])
            self._counts.append(0)
        self._answers.clear()
        bit = 1 << position
        bit = self._shared_masks()(bit, bit)
        self._bits[holder] = bit
        self._live |= bit
        return bit

    def _forget(self, holder: tuple[str, str]) -> None:
        instance, writer = holder
        self._ended.discard(holder)
        if not writer:
            self._ended |= {known for known in self._bits if known[0] == instance and known[1].startswith(GUESSES)}
        for gone in (holder, *self._ended):
            if gone in self._bits:
                self._retire(self._bits.pop(gone))

    def _retire(self, bit: int) -> None:
        self._live &= ~bit
        self._dead |= bit
        self._counts[bit.bit_length() - 1] = 0

    def _add(self, bit: int, keys: Sequence[int]) -> None:
        shards, shared, added = self._shards, self._shared_masks(), 0
        for key in keys:
            shard = shards[key >> SHIFT]
            mask = shard.get(key)
            if mask is None:
                shard[key] = bit
            elif mask & bit:
                continue
            else:
                mask |= bit
                shard[key] = shared(mask, mask)
            added += 1
        self._counts[bit.bit_length() - 1] += added

    def _remove(self, bit: int, keys: Sequence[int]) -> None:
        shards, shared, removed = self._shards, self._shared_masks(), 0
        for key in keys:
            shard = shards[key >> SHIFT]
            mask = shard.get(key, 0)
            if mask & bit:
                if mask == bit:
                    del shard[key]
                else:
                    mask ^= bit
                    shard[key] = shared(mask, mask)
                removed += 1
        self._counts[bit.bit_length() - 1] -= removed

    def _shared_masks(self) -> Callable[[int, int], int]:
        """`setdefault` of the masks to share: bound once for many keys, which pay for every call."""
        if len(self._masks) >= SHARED_MASKS:
            self._masks.clear()
        return self._masks.setdefault

    def _sweep_some(self) -> None:
        if self._sweep is None and self._dead:
            self._sweep = self._round()
        if self._sweep is not None:
            next(self._sweep, None)

    def _round(self) -> Iterator[None]:
        """Take the bits that are dead at the start out of all keys, a shard a step; then they may be used again."""
        doomed = self._dead
        for shard in self._shards:
            shared = self._shared_masks()
            for key, mask in [item for item in shard.items() if item[1] & doomed]:
                if kept := mask & ~doomed:
                    shard[key] = shared(kept, kept)
                else:
                    del shard[key]
            yield
        self._dead &= ~doomed
        self._free.extend(_positions(doomed))
        self._sweep = None


def _positions(mask: int) -> Iterator[int]:
    """Positions of the bits of a mask, ascending."""
    while mask:
        bit = mask & -mask
        yield bit.bit_length() - 1
        mask ^= bit


class MemoryIndex:
    """The `Index` of `memory://`."""

    def __init__(self) -> None:
        self._pools: dict[str, Holders] = defaultdict(Holders)
        self._adapters: dict[str, Adapters] = defaultdict(Adapters)
        self._reports: dict[str, Mapping[str, EventReport]] = {}
        self._responses: dict[str, dict[str, str]] = defaultdict(dict)  # id -> instance; the newest last

    async def match(self, pool: str, chain: Sequence[int]) -> Mapping[str, int]:
        """See `Index`."""
        return self._pools[pool].match(chain)

    async def apply(self, changes: Sequence[Change]) -> None:
        """See `Index`."""
        lost: dict[str, set[str]] = defaultdict(set)
        for change in changes:
            if not self._pools[change.pool].apply(change):
                lost[change.pool].add(change.instance)
            elif change.forget:
                lost[change.pool].discard(change.instance)
            if (change.forget and not change.writer) or change.adapters is not None:
                self._adapters[change.pool].tell(change.instance, (change.adapters or ())[-MAX_ADAPTERS:])
        for pool, instances in lost.items():
            if instances:
                raise IndexLost(pool, frozenset(instances))

    def adapters(self, pool: str) -> Mapping[str, Set[str]]:
        """See `Index`."""
        return self._adapters[pool].instances

    async def sizes(self, pool: str) -> Mapping[str, int]:
        """See `Index`."""
        return self._pools[pool].sizes()

    async def report(self, pool: str, reports: Mapping[str, EventReport]) -> None:
        """See `Index`."""
        self._reports[pool] = dict(reports)

    async def reports(self, pool: str) -> Mapping[str, EventReport]:
        """See `Index`."""
        return self._reports.get(pool, {})

    async def remember(self, pool: str, response: str, instance: str, ttl_s: int) -> None:
        """See `Index`. It knows no time: the newest `MAX_RESPONSES` are remembered."""
        responses = self._responses[pool]
        responses.pop(response, None)
        responses[response] = instance
        if len(responses) > MAX_RESPONSES:
            del responses[next(iter(responses))]

    async def recall(self, pool: str, response: str) -> str | None:
        """See `Index`."""
        return self._responses[pool].get(response)

    async def close(self) -> None:
        """See `Index`."""
