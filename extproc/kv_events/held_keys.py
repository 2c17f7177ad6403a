"""What of a mirrored cache counts as held: prompt-block keys, each while some usable engine block completes it. Pure.

`mirror.py` says which blocks came and which left; here stands what follows from it. A block is usable where no block
before it is missing and all groups can go on behind it (`groups.py`); a run claims its blocks up to the last usable
one, or up to the last block on which a claim hangs. What hangs behind a hole returns when the hole is filled.

One block may change what is claimed of a million behind it. So changes are only noted, and `settle` works them off in
bounded pieces: parents are looked at before what hangs on them; then keys are counted down, those that come last in
their prompts first; then they are counted up, the first ones first. Whoever drains in between gets whole prefixes.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from extproc.kv_events.block_tree import Forest, Run
from extproc.kv_events.groups import Group, Groups, Place

RUNS = 16  # that a piece of settling looks at or counts: up to 64 blocks each, under a millisecond
CROWDED = 256  # runs to look at that call for settling, though more is to be applied

_Queue = list[tuple[int, int, Run]]  # by depth, then in order of arrival
_Marks = dict[int, tuple[Place, ...] | None]


class Moved(NamedTuple):
    """Keys whose state changed since the last drain, net."""

    remove: list[int]  # a chain's later keys before its earlier ones
    add: list[int]  # a chain's earlier keys before its later ones


class Claims:
    """The keys held, of the blocks of one forest and what the groups besides its trunk hold."""

    def __init__(self, forest: Forest, groups: Groups, prompt_block_bytes: int) -> None:
        self._forest = forest
        self._groups = groups
        self._size = prompt_block_bytes
        self._held: dict[int, int] = {}  # keys, with the number of usable engine blocks that complete them
        self._touched: dict[int, bool] = {}  # keys counted since the last drain: whether they were held before
        self._arrival = count()
        self._stale: _Queue = []
        self._shrinking: _Queue = []
        self._worn: dict[Run, None] = {}  # runs with blocks that may be dropped
        self._growing: _Queue = []

    @property
    def held(self) -> Iterable[int]:
        """Every key held, earlier blocks of a chain before later ones."""
        return self._held.keys()

    @property
    def remains(self) -> tuple[dict[int, Any], ...]:
        """What takes up its memory: whoever has done with the claims may drop these piece by piece."""
        return self._held, self._touched

    @property
    def crowded(self) -> bool:
        """Whether to settle before more is noted."""
        return len(self._stale) >= CROWDED or bool(self._shrinking or self._growing)

    @property
    def settled(self) -> bool:
        """Whether nothing follows any more from what was noted."""
        return not (self._stale or self._shrinking or self._growing)

    def drain(self) -> Moved:
        """The net change since the last call, of what is settled."""
        touched, self._touched = self._touched, {}
        return Moved(
            [key for key, before in touched.items() if before and key not in self._held],
            [key for key, before in touched.items() if not before and key in self._held],
        )

    # What changed

    def came(self, run: Run, position: int) -> None:
        """The trunk has its first copy of the block at `position`."""
        if position != run.solid:
            return
        copies, last = run.copies, len(run.hashes)
        while position < last and copies[position]:
            position += 1
        run.solid = position
        parent = self._forest.parent(run)
        if parent is not None and run.at not in parent.marks:
            self._look_at(parent)
        self._look_at(run)

    def left(self, run: Run, position: int) -> None:
        """The trunk has lost its last copy of the block at `position`."""
        self._worn[run] = None
        if position < run.solid:
            run.solid = position
            self._look_at(run)

    def regroup(self, group: Group, hash_: int) -> None:
        """A group took up its first copy of a block, or lost its last."""
        if (found := self._forest.find(hash_)) is not None:
            self._look_at(found[0])
        elif group.inner:
            for boundary in group.boundaries(hash_, self._forest.knows):
                self._look_at(self._forest.run(boundary))

    def regroup_all(self) -> None:
        """A group has appeared: it holds nothing yet, and what needs it is held no more."""
        for run in self._forest.roots():
            self._look_at(run)

    def _look_at(self, run: Run) -> None:
        if not run.stale:
            run.stale = True
            heappush(self._stale, (run.depth, next(self._arrival), run))

    # What follows from it

    def settle(self) -> bool:
        """Do a piece of what follows from all that was noted; False if there was nothing."""
        if self._stale:
            for _ in range(min(RUNS, len(self._stale))):
                self._review(heappop(self._stale)[2])
        elif self._shrinking:
            self._count_down()
        elif self._worn:
            for _ in range(min(RUNS, len(self._worn))):
                run = self._worn.popitem()[0]
                if run.hashes:  # it may be gone together with what hung on it
                    self._forest.trim(run)
        elif self._growing:
            self._count_up()
        else:
            return False
        return True

    def _review(self, run: Run) -> None:
        """How far is a run usable, and with it what hangs on it?"""
        run.stale = False
        state = self._entry(run)
        reach = run.solid if state is not None else 0
        marks: _Marks = {}
        if not self._groups.others:
            run.usable = reach
            marks = {at: () for at in run.forks if at < reach}
        else:
            run.usable = self._follow(run, reach, list(state or ()), marks)
        for at in run.forks:
            if at not in run.marks or marks.get(at) != run.marks[at]:
                for fork in run.forks[at]:
                    self._look_at(fork)
        run.marks = {at: marks.get(at) for at in run.forks}
        self._aim(run)

    def _entry(self, run: Run) -> tuple[Place, ...] | None:
        """How far the groups got before a run; None where the trunk itself has a hole there."""
        parent = self._forest.parent(run)
        if parent is None:
            return self._groups.beginning
        return parent.marks.get(run.at)

    def _follow(self, run: Run, reach: int, state: list[Place], marks: _Marks) -> int:
        """Follow the groups along the first `reach` blocks: where is the last behind which all of them can go on?"""
        usable, groups, forks = 0, self._groups.others, run.forks
        for position in range(reach):
            hash_ = run.hashes[position]
            ready = True
            for number, group in enumerate(groups):
                streak = group.streak(hash_, state[number])
                if streak:
                    state[number] = Place(hash_, streak)
                if streak < group.needed:
                    ready = False
            if ready:
                usable = position + 1
            if position in forks:
                marks[position] = tuple(state)
        return usable

    def _aim(self, run: Run | None) -> None:
        """Set a run's claim; where it begins or ends to have one, its parent's may follow."""
        while run is not None:
            claim = max(run.usable, max(run.claimed, default=-1) + 1)
            before, run.claim = run.claim, claim
            if claim < run.counted:
                heappush(self._shrinking, (-run.depth, next(self._arrival), run))
            elif claim > run.counted:
                heappush(self._growing, (run.depth, next(self._arrival), run))
            if bool(before) == bool(claim):
                return
            parent = self._forest.parent(run)
            if parent is not None:
                forks = parent.claimed.get(run.at, 0) + (1 if claim else -1)
                if forks:
                    parent.claimed[run.at] = forks
                else:
                    del parent.claimed[run.at]
            run = parent

    # Counting keys, in the order that `index.Change` asks for

    def _count_down(self) -> None:
        held, touched = self._held, self._touched
        for _ in range(min(RUNS, len(self._shrinking))):
            run = heappop(self._shrinking)[2]
            if run.claim >= run.counted:
                continue
            for key in reversed(run.keys[run.end(run.claim) // self._size : run.end(run.counted) // self._size]):
                if held[key] > 1:
                    held[key] -= 1
                else:
                    del held[key]
                    touched.setdefault(key, True)
            run.counted = run.claim

    def _count_up(self) -> None:
        held, touched = self._held, self._touched
        for _ in range(min(RUNS, len(self._growing))):
            run = heappop(self._growing)[2]
            if run.claim <= run.counted:
                continue
            for key in run.keys[run.end(run.counted) // self._size : run.end(run.claim) // self._size]:
                copies = held.get(key, 0)
                held[key] = copies + 1
                if not copies:
                    touched.setdefault(key, False)
            run.counted = run.claim
