"""KV-cache groups: layers of one model that share block tables, and what a hit needs of each of them. Pure.

Full-attention, MLA and sink groups keep whole prompts: a hit needs all of its blocks in every one of them. One such
group is the *trunk*, whose events shape the forest. Sliding-window and state-space groups keep only the last blocks of
a prompt: a hit needs as many blocks before the boundary where it ends as the group looks back on.

Limits, all on the side of no hit: models without a group that keeps whole prompts, groups with blocks of another size
than the trunk's, chunked local attention, hybrid models on vLLM 0.21, which numbers groups but does not say their kind.
Before 0.21 groups are not even numbered, and their copies add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from extproc.kv_events.block_tree import Forest, Run
from extproc.kv_events.engines import Stored, UnusableEvents

MOST = 64  # groups of one engine; real ones have fewer than ten
COPY_BYTES = 128  # memory that a block of a group besides the trunk takes


@dataclass(slots=True)
class Group:
    """A group besides the trunk: the copies of blocks that it holds, by hash."""

    lookback: int | None  # engine blocks; None for a group that keeps whole prompts
    copies: Counter[int] = field(default_factory=Counter)

    def store(self, block: int) -> bool:
        """Count a copy; whether it is the first."""
        self.copies[block] += 1
        return self.copies[block] == 1

    def remove(self, block: int) -> bool:
        """Count a copy less; whether it was the last."""
        if self.copies[block] > 1:
            self.copies[block] -= 1
            return False
        return self.copies.pop(block, 0) > 0


class Groups:
    """The groups of one engine, as its events make them known."""

    def __init__(self) -> None:
        self.trunk: int | None = None  # its number
        self.whole: list[Group] = []  # besides the trunk
        self.looking: list[Group] = []  # those that keep only the last blocks
        self._others: dict[int, Group] = {}

    @property
    def memory(self) -> int:
        """Bytes of memory, estimated."""
        return COPY_BYTES * sum(len(group.copies) for group in self._others.values())

    def get(self, number: int) -> Group | None:
        """A group besides the trunk, if it is known."""
        return self._others.get(number)

    def meet(self, event: Stored) -> Group | None:
        """The group of this event if no event of it was seen before, and it is not the trunk; else None.

        Raises `UnusableEvents` (`too_many_groups`).
        """
        if event.group == self.trunk or event.group in self._others:
            return None
        needed = lookback(event.kind, event.window, event.block_size)
        if needed is None and self.trunk is None:
            self.trunk = event.group
            return None
        if len(self._others) >= MOST:
            raise UnusableEvents("too_many_groups", f"group {event.group}")
        group = self._others[event.group] = Group(needed)
        (self.whole if needed is None else self.looking).append(group)
        return group

    def clear(self) -> None:
        """The engine has dropped all blocks; its groups stay what they are."""
        for group in self._others.values():
            group.copies.clear()

    def hold(self, block: int) -> bool:
        """Whether all groups besides the trunk that keep whole prompts hold a block."""
        return all(block in group.copies for group in self.whole)


def lookback(kind: str | None, window: int | None, block_size: int) -> int | None:
    """How many blocks before a boundary a group must hold for a hit there; None: all of the prompt.

    For sliding windows ceil((window - 1) / block_size), as in vLLM's SlidingWindowManager: the token to be computed is
    in the window too. A state-space group needs the state at the boundary. Kinds that do not say how far they look back
    count as keeping whole prompts: they are underestimated, never overestimated.
    """
    if kind in {"sliding_window", "sliding_window_mla"} and window is not None and block_size > 0:
        return max(1, -(-(window - 1) // block_size))
    return 1 if kind == "mamba" else None


def last_boundary(forest: Forest, run: Run, looking: list[Group]) -> int:
    """How many of the run's reachable blocks lie before its last boundary that all these groups can go on from."""
    needed = [group.lookback or 0 for group in looking]
    streaks = [_streak(forest, run, group.copies, most) for group, most in zip(looking, needed, strict=True)]
    last = 0
    for position in range(run.reach):
        block = run.hashes[position]
        for i, group in enumerate(looking):
            streaks[i] = streaks[i] + 1 if block in group.copies else 0
        if all(map(int.__ge__, streaks, needed)):
            last = position + 1
    return last


def _streak(forest: Forest, run: Run, copies: Counter[int], needed: int) -> int:
    """How many blocks in a row, up to `needed`, are held before a run; before the prompt begins none is missing."""
    streak = 0
    place = forest.previous(run, 0)
    while streak < needed:
        if place is None:
            return needed
        if place[0].hashes[place[1]] not in copies:
            break
        streak += 1
        place = forest.previous(*place)
    return streak


def within(run: Run, position: int, count: int) -> Iterator[Run]:
    """The runs with a block less than `count` blocks behind the one at `position`, which counts itself."""
    rest = [(run, position, count)]
    while rest:
        run, position, count = rest.pop()
        yield run
        for at, forks in run.forks.items():
            if position <= at < position + count - 1:
                rest += [(fork, 0, count - (at - position) - 1) for fork in forks]
