"""A mirror of one instance's KV cache: engine events in, prompt-block keys out. Pure; knows no clock and no socket.

A block's text continues its parent's, so each engine block completes certain prompt blocks (`blocks.py`). A key is held
while some *usable* engine block completes it: two prompts may reach the same bytes through different tokens.

What is usable:
- Copies are counted: engines store a block twice and remove each copy, or only say so of the last (`removals.py`). A
  block without a copy ends every prompt that runs through it; what hangs behind it is unreachable, is not held, and
  returns when the block is stored again.
  (vLLM's `kv_cache_report_mode=full` announces reused blocks as stored: such counts are too high until a clear.)
- A block whose parent is unknown is left out, with all that follows it. Hence a mirror that starts in the middle of an
  engine's life, or anew after `forget`, holds part of the truth and never more than it.
- Every group that keeps whole prompts must hold the block (`groups.py`). Where other groups keep only the last
  blocks, a prompt is usable up to its last boundary that they can go on from. Shorter prefixes then count as held too,
  because an index bisects: a prompt that leaves the chain before that boundary is overestimated until the engine has
  computed it, once. To avoid that, the index would need to allow holes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from extproc.base import blocks
from extproc.index import MAX_ADAPTERS
from extproc.kv_events import loose_text
from extproc.kv_events.block_tree import Forest, held_behind
from extproc.kv_events.engines import Cleared, Event, Removed, Stored, Tier, UnusableEvents
from extproc.kv_events.groups import ELSEWHERE, Group, Groups
from extproc.kv_events.held_keys import Claims
from extproc.kv_events.removals import Removals
from extproc.kv_events.stored_blocks import Growth, Place, Vocabulary

# Of one instance's mirror, without index: five million blocks of 16 tokens. No cache has 80 million tokens: an engine
# that seems to hold more does not report what it removes.
MEMORY = 1 << 30  # bytes
# Engine blocks after which a group that was never heard of before is no honest one: all groups announce themselves with
# the first prompt that is cached. Everything is then forgotten, because every prompt would have to be looked at anew.
LATE = 16_384
WAITING = 4096  # stored prompts to be told of later; what is beyond is not told, and guesses end by time
FREED = 1024  # entries that a piece of freeing memory drops
LONGEST_NAME = 512  # characters of a LoRA adapter's name; a longer one is not announced


@dataclass(frozen=True, slots=True)
class Delta:
    """What changed since the last `drain`, net; the first four as in `index.Change`."""

    forget: bool
    remove: Sequence[int]
    add: Sequence[int]
    adapters: Sequence[str] | None
    ignored: Counter[str]  # engine blocks left out, by cause
    stored: Sequence[int]  # keys up to which prompts were stored, whether or not they still are
    span: int  # prompt blocks that an engine block of any group spans, rounded up


class Mirror:
    """One instance's cache. `apply` events in order, `settle` until there is nothing to do, then `drain` the change.

    Each is a bounded piece of work, and all together are linear in what changed.
    """

    def __init__(
        self,
        pool: str,
        vocabulary: Vocabulary,
        prompt_block_bytes: int = blocks.DEFAULT_SIZE,
        loose: loose_text.Vocabulary | None = None,
        *,
        secret: bytes = b"",
    ) -> None:
        """`loose` tells the text behind a prompt's first medium; without it, that ends what is followed. `secret` is
        that of all keys (base/blocks.py)."""
        self._pool = pool
        self._secret = secret
        self._growth = Growth(vocabulary, loose)
        self._size = prompt_block_bytes
        self._adapters: dict[str, None] = {}  # names of the LoRA adapters seen; what was stored last is last
        self._adapters_told = True  # whether the last delta had them all
        self._removals = Removals()
        self._block_size = 1  # tokens in the largest blocks of any group: hits end at whole ones
        self._ignored: Counter[str] = Counter()
        self._debris: list[dict[int, Any]] = []  # what was held before, to be freed piece by piece
        self._groups = Groups()
        self._begin()

    @property
    def held(self) -> Iterable[int]:
        """Every key held, earlier blocks of a chain before later ones: what an empty index must be told."""
        return self._claims.held

    @property
    def adapters(self) -> Iterable[str]:
        """Names of the LoRA adapters seen since all was forgotten; an engine that is cleared still has them."""
        return self._adapters.keys()

    def forget(self) -> None:
        """Hold nothing: what is known of the engine may no longer be true."""
        self._adapters.clear()
        self._clear()
        self._groups = Groups()
        self._begin()

    def _clear(self) -> None:
        self._debris += filter(None, (*self._groups.clear(), self._forest.remains, *self._claims.remains))
        self._removals.clear()
        self._begin()

    def _begin(self) -> None:
        self._forest = Forest(self._size)
        self._claims = Claims(self._forest, self._groups, self._size)
        self._forgot = True
        self._adapters_told = not self._adapters
        self._stored: list[int] = []
        self.blocks = 0  # engine blocks held, however many copies

    def apply(self, event: Event) -> None:
        """Take over one event.

        Raises `UnusableEvents` where it contradicts what is held (`contradiction`) or is too much of it
        (`too_many_blocks`, `too_many_groups`). The mirror must then `forget`.
        """
        if isinstance(event, Cleared):
            self._clear()
        elif event.tier is not Tier.GPU:
            return
        elif isinstance(event, Stored):
            self._store(event)
        else:
            self._remove(event)

    @property
    def crowded(self) -> bool:
        """Whether to settle before more is applied."""
        return self._claims.crowded or bool(self._debris)

    def settle(self) -> bool:
        """Do a piece of what follows from the events applied; False if there was nothing."""
        return self._claims.settle() or self._sweep()

    def _sweep(self) -> bool:
        """Free a piece of what was held before all was dropped; at once it would take long."""
        if not self._debris:
            return False
        last = self._debris[-1]
        for _ in range(min(FREED, len(last))):
            last.popitem()
        if not last:
            self._debris.pop()
        return True

    def drain(self) -> Delta:
        """The net change since the last call, of what is settled: whole prefixes, whatever is not."""
        moved = self._claims.drain()
        # A key that is said to be stored must be among those added: what is not settled waits.
        stored, self._stored = (self._stored, []) if self._claims.settled else ([], self._stored[-WAITING:])
        delta = Delta(
            forget=self._forgot,
            remove=moved.remove,
            add=moved.add,
            adapters=None if self._adapters_told else list(self._adapters),
            ignored=+self._ignored,
            stored=stored,
            span=max(1, ceil(self._growth.token_bytes * self._block_size / self._size)),
        )
        self._forgot = False
        self._adapters_told = True
        self._ignored.clear()
        return delta

    # Storing and removing

    def _store(self, event: Stored) -> None:
        if event.adapter and len(event.adapter) <= LONGEST_NAME:
            self._note_adapter(event.adapter)
        if self._groups.meet(event):
            if len(self._forest) > LATE:
                raise UnusableEvents("late_group", f"group {event.group} after {len(self._forest)} blocks")
            self._claims.regroup_all()
        self._block_size = max(self._block_size, event.block_size)
        group = self._groups.get(event.group)
        if group is not None:
            if group.takes(event):
                self._store_beside(group, event)
        elif event.group == self._groups.trunk:
            self._store_trunk(event)
        if self._forest.memory + self._groups.memory > MEMORY:
            raise UnusableEvents("too_many_blocks", f"{len(self._forest)} blocks")

    def _note_adapter(self, name: str) -> None:
        if name in self._adapters:
            del self._adapters[name]
        else:
            self._adapters_told = False
            if len(self._adapters) >= MAX_ADAPTERS:
                del self._adapters[next(iter(self._adapters))]
        self._adapters[name] = None

    def _store_beside(self, group: Group, event: Stored) -> None:
        before = event.parent if event.follows else ELSEWHERE
        for block in event.hashes:
            if group.store(block, before):
                self._claims.regroup(group, block)
            self._removals.stored((event.group, block))
            before = block

    def _store_trunk(self, event: Stored) -> None:
        hashes = event.hashes
        if event.block_size < 1 or len(event.tokens) != len(hashes) * event.block_size:
            self._ignored["misaligned"] += len(hashes)
            return
        behind: Place | None = None
        if event.parent is not None:
            behind = self._forest.find(event.parent)
            if behind is None:
                self._ignored["unknown_parent"] += len(hashes)
                return
        done = 0
        while done < len(hashes) and (known := self._forest.find(hashes[done])) is not None:
            if self._forest.previous(*known) != behind:
                raise UnusableEvents("contradiction", f"block {hashes[done]:x} behind another block than before")
            self._count(event.group, hashes[done], known[0].copies[known[1]] + 1)
            self._removals.stored((event.group, hashes[done]))
            behind = known
            done += 1
        until = self._growth.known(event)
        self._ignored["not_text"] += len(hashes) - max(done, until)
        if done < until:
            behind = self._grow(behind, event, done, until)
        if behind is not None:
            self._stored.append(self._forest.tip(*behind))

    def _grow(self, behind: Place | None, event: Stored, first: int, until: int) -> Place | None:
        """Add blocks; returns the last one, or `behind` where none could be added."""
        if not self._forest.lacks(event.hashes[first:until]):
            raise UnusableEvents("contradiction", "a block that is its own ancestor")
        root = 0 if behind else blocks.root(self._pool, event.adapter, event.salt, secret=self._secret)
        added = 0
        for run, position in self._growth.grow(self._forest, behind, root, event, first, until):
            self._claims.came(run, position)
            behind = run, len(run.hashes) - 1
            added += len(run.hashes) - position
        self.blocks += added
        self._ignored["unknown_token"] += until - first - added
        return behind

    def _remove(self, event: Removed) -> None:
        for hash_ in event.hashes:
            block = (event.group, hash_)
            if self._removals.shows_each(block) and not self._copies(*block):
                self._turn()
            if copies := self._copies(*block):
                self._count(*block, self._removals.left(block, copies))

    def _turn(self) -> None:
        """Removals mean something else than believed."""
        for block, copies in self._removals.turn().items():
            self._count(*block, copies)

    def _copies(self, number: int, hash_: int) -> int:
        """Copies of a block that a group holds."""
        if (group := self._groups.get(number)) is not None:
            return group.copies(hash_)
        found = self._forest.find(hash_) if number == self._groups.trunk else None
        return 0 if found is None else found[0].copies[found[1]]

    def _count(self, number: int, hash_: int, copies: int) -> None:
        """A group holds so many copies of a block that it held before."""
        if (group := self._groups.get(number)) is not None:
            if group.count(hash_, copies):
                self._claims.regroup(group, hash_)
        elif (found := self._forest.find(hash_)) is not None:
            run, position = found
            before, run.copies[position] = run.copies[position], copies
            if copies and not before:
                self.blocks += 1
                self._claims.came(run, position)
            elif before and not copies:
                self.blocks -= 1
                self._claims.left(run, position)
                if self._removals.shows_last_only((number, behind) for behind in held_behind(run, position)):
                    self._turn()
