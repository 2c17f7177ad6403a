"""KV-cache groups: layers of one model that share block tables, and what a hit needs of each of them. Pure.

Full-attention, MLA and sink groups keep whole prompts: a hit needs all of a prompt's blocks in every one of them. One
such group is the *trunk*, whose events shape the forest. Sliding-window and state-space groups keep only the last
blocks of a prompt: a hit needs there, before the boundary where it ends, as many blocks as the group looks back on.

Blocks of another group may be smaller or larger than the trunk's. A hash stands for all of the prompt up to its block's
end, so at a common boundary all groups have the same one: a hit can end there and nowhere else, which is the multiple
of all block sizes that the engine asks for. Between two such boundaries a group's blocks are followed by their links.

What events do not say: a group that keeps only some blocks may announce fewer hashes than its tokens would fill. Those
of one event are taken to follow each other. Where they do not (an engine may skip what no hit can use), each stretch is
long enough for a hit at its end, so nothing more is believed.

Limits, all on the side of no hit: models without a group that keeps whole prompts, chunked local attention, hybrid
models on vLLM 0.21, which numbers groups but does not say their kind. Before 0.21 groups are not even numbered, and
their copies add up. On the other side: with speculative decoding a hit may be a block shorter than what is held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from extproc.kv_events.engines import Stored, UnusableEvents

MOST = 64  # groups of one engine; real ones have fewer than ten
BLOCK_BYTES = 256  # memory that a block of a group besides the trunk takes
ALL = 1 << 62  # blocks needed by a group that keeps whole prompts
ELSEWHERE = -1  # in place of a hash: what stands before a block is not known
# Blocks of a group between two boundaries of the trunk: 64 in DeepSeek-V4, of 4 and 256 tokens. What is longer is not
# followed, and what branches more is followed in part.
INNER = 256
BRANCHES = 4096


@dataclass(slots=True)
class _Block:
    """A block of a group besides the trunk. One without copies is kept for what stands behind it."""

    copies: int = 0
    before: int | None = ELSEWHERE  # hash of the block before it; None where the prompt begins
    after: set[int] | None = None  # hashes of the blocks behind it


class Place(NamedTuple):
    """How far a group can be followed along a prompt."""

    block: int | None  # hash of the last block that it holds at a boundary of the trunk; None: the prompt's beginning
    streak: int  # blocks in a row that it holds up to there, at most as many as it needs


class Group:
    """A group besides the trunk: the blocks that it holds, by hash."""

    def __init__(self, needed: int, block: int, *, inner: bool) -> None:
        self.needed = needed  # blocks before a boundary that a hit there needs
        self._block = block  # tokens
        self.inner = inner  # whether its blocks may end inside those of the trunk
        self._blocks: dict[int, _Block] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def clear(self) -> dict[int, _Block]:
        """The engine dropped all blocks. Returns what may be dropped of them piece by piece."""
        blocks, self._blocks = self._blocks, {}
        return blocks

    def takes(self, event: Stored) -> bool:
        """Whether an event is about whole blocks. vLLM also announces the last part of a prompt, as a smaller block.

        Such a part stands beside the chain of blocks. Only where one block is enough may a hit end there.
        """
        self._block = max(self._block, event.block_size)
        return event.block_size == self._block or self.needed == 1

    def store(self, hash_: int, before: int | None) -> bool:
        """Count a copy of the block behind `before`; whether it is the first."""
        block = self._blocks.get(hash_)
        if block is None:
            block = self._blocks[hash_] = _Block()
        block.copies += 1
        if before != ELSEWHERE and block.before == ELSEWHERE:
            self._link(hash_, block, before)
        return block.copies == 1

    def copies(self, hash_: int) -> int:
        """Copies of a block that it holds."""
        block = self._blocks.get(hash_)
        return 0 if block is None else block.copies

    def count(self, hash_: int, copies: int) -> bool:
        """It holds so many copies of a block that it held before; whether that is none, or none was before."""
        block = self._blocks.setdefault(hash_, _Block())
        before, block.copies = block.copies, copies
        if not copies:
            self._unlink(hash_, block)
            if not block.after:
                self._blocks.pop(hash_, None)
        return bool(before) != bool(copies)

    def streak(self, hash_: int, last: Place) -> int:
        """How many blocks in a row it holds up to this one, at most as many as it needs; 0 if it does not hold it.

        `last` is the nearest place before it on the same prompt.
        """
        blocks, needed = self._blocks, self.needed
        block = blocks.get(hash_)
        if block is None or not block.copies:
            return 0
        streak, before = 1, block.before
        while before != last.block:
            if before is None:
                return needed  # all of the prompt is there
            block = blocks.get(before)
            if block is None or not block.copies or streak == INNER:
                break
            streak, before = streak + 1, block.before
        else:
            streak += last.streak
        if streak >= needed:
            return needed
        return 1 if needed == ALL else streak  # no beginning without all of it

    def boundaries(self, hash_: int, known: Callable[[int], bool]) -> Iterator[int]:
        """The nearest blocks behind this one that are `known`: those that end where a block of the trunk does."""
        rest, seen = [hash_], 0
        while rest and seen < BRANCHES:
            block = self._blocks.get(rest.pop())
            for behind in (block.after or ()) if block is not None else ():
                seen += 1
                if known(behind):
                    yield behind
                else:
                    rest.append(behind)

    def _link(self, hash_: int, block: _Block, before: int | None) -> None:
        block.before = before
        if self.inner and before is not None:
            other = self._blocks.get(before)
            if other is None:
                other = self._blocks[before] = _Block()
            if other.after is None:
                other.after = set()
            other.after.add(hash_)

    def _unlink(self, hash_: int, block: _Block) -> None:
        before, block.before = block.before, ELSEWHERE
        other = self._blocks.get(before) if before is not None else None
        if other is not None and other.after is not None:
            other.after.discard(hash_)
            if not other.after and not other.copies and before is not None:
                del self._blocks[before]


class Groups:
    """The groups of one engine, as its events make them known."""

    def __init__(self) -> None:
        self.trunk: int | None = None  # its number
        self._trunk_block = 0  # tokens
        self._others: dict[int, Group] = {}
        self.others: Sequence[Group] = ()  # all but the trunk
        self.beginning: tuple[Place, ...] = ()  # where each of them stands before a prompt's first block

    @property
    def memory(self) -> int:
        """Bytes of memory, estimated."""
        return BLOCK_BYTES * sum(map(len, self.others))

    def get(self, number: int) -> Group | None:
        """A group besides the trunk, if it is known."""
        return self._others.get(number)

    def meet(self, event: Stored) -> bool:
        """Whether the group of this event is one besides the trunk of which no event was seen before.

        Raises `UnusableEvents` (`too_many_groups`).
        """
        if event.group == self.trunk or event.group in self._others:
            return False
        needs = needed(event.kind, event.window, event.block_size)
        if needs == ALL and self.trunk is None:
            self.trunk, self._trunk_block = event.group, event.block_size
            return False
        if len(self._others) >= MOST:
            raise UnusableEvents("too_many_groups", f"group {event.group}")
        aligned = self._trunk_block > 0 and event.block_size % self._trunk_block == 0
        self._others[event.group] = Group(needs, event.block_size, inner=not aligned)
        self.others = tuple(self._others.values())
        self.beginning = (Place(None, ALL),) * len(self.others)
        return True

    def clear(self) -> list[dict[int, Any]]:
        """The engine has dropped all blocks; its groups stay what they are. Returns what may be freed bit by bit."""
        return [group.clear() for group in self.others]


def needed(kind: str | None, window: int | None, block_size: int) -> int:
    """How many blocks before a boundary a group must hold for a hit there, or ALL of the prompt.

    For sliding windows ceil((window - 1) / block_size), as in vLLM's SlidingWindowManager: the token to be computed is
    in the window too. A state-space group needs the state at the boundary. Kinds that do not say how far they look back
    count as keeping whole prompts: they are underestimated, never overestimated.
    """
    if kind in {"sliding_window", "sliding_window_mla"} and window is not None and block_size > 0:
        return min(max(1, -(-(window - 1) // block_size)), ALL)
    return 1 if kind == "mamba" else ALL
