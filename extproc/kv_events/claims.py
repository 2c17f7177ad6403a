"""What of a mirrored cache counts as held: prompt-block keys, each while some usable engine block completes it. Pure.

`mirror.py` says which blocks came and which left; this module says what follows. Of every run:
- `reach`: how many of its leading blocks are held without a hole since the prompt began, by all groups that keep whole
  prompts. What hangs behind a hole is unreachable, and returns when the hole is filled.
- `claim`: how many of them, at most `reach`, count. Without groups that look back (`groups.py`) it is `reach`; with
  them it ends at the last boundary that all of them can go on from, or at the last block on which a claim hangs.

Claims that depend on what a group looks back on are settled once a drain, not once an event.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from extproc.kv_events.block_tree import Forest, Run
from extproc.kv_events.groups import Group, Groups, last_boundary, within


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
        self._unsettled: dict[Run, None] = {}  # whose claim may change, where a group looks back

    @property
    def held(self) -> Iterable[int]:
        """Every key held, earlier blocks of a chain before later ones."""
        return self._held.keys()

    def drain(self) -> Moved:
        """The net change since the last call."""
        self._settle()
        touched, self._touched = self._touched, {}
        return Moved(
            [key for key, before in touched.items() if before and key not in self._held],
            [key for key, before in touched.items() if not before and key in self._held],
        )

    # What is reachable

    def _held_from(self, run: Run, position: int) -> int:
        """The first position from `position` on whose block is not held."""
        copies, last = run.copies, len(run.hashes)
        if not self._groups.whole:
            while position < last and copies[position]:
                position += 1
        else:
            while position < last and copies[position] and self._groups.hold(run.hashes[position]):
                position += 1
        return position

    def came(self, run: Run, position: int) -> None:
        """The trunk has its first copy of the block at `position`: how far do prompts get?"""
        if position == run.reach:
            parent = self._forest.parent(run)
            if parent is None or parent.reach > run.at:
                self._set_reach(run, self._held_from(run, position))

    def left(self, run: Run, position: int) -> None:
        """The trunk has lost its last copy of the block at `position`."""
        if position < run.reach:
            self._set_reach(run, position)

    def _set_reach(self, run: Run, reach: int) -> None:
        shrinks = reach < run.reach
        changed = [(run, reach)]
        for run, reach in changed:  # grows on the way: each run before those that hang on it
            before, run.reach = run.reach, reach
            for at, forks in run.forks.items():
                if before <= at < reach:
                    changed += [(fork, self._held_from(fork, 0)) for fork in forks]
                elif reach <= at < before:
                    changed += [(fork, 0) for fork in forks]
        for run, reach in reversed(changed) if shrinks else changed:
            if self._groups.looking:
                self._unsettled[run] = None
                reach = min(run.claim, reach)
            self._set_claim(run, reach)

    # What is held

    def _set_claim(self, run: Run, claim: int) -> None:
        """Count the keys that the first `claim` blocks of a run complete as held, and no others of the run."""
        before = run.claim
        if claim != before:
            self._move_claim(run, claim)
            self._count(run, before)

    def _move_claim(self, run: Run, claim: int) -> None:
        if self._groups.looking and run.parent is not None and bool(claim) != bool(run.claim):
            found = self._forest.parent(run)
            if found is not None:
                self._unsettled[found] = None
        run.claim = claim

    def _count(self, run: Run, before: int) -> None:
        """Count keys after the claim moved, in the order that `index.Change` asks for."""
        held, touched = self._held, self._touched
        first, last = run.end(before) // self._size, run.end(run.claim) // self._size
        for key in run.keys[first:last]:
            count = held.get(key, 0)
            held[key] = count + 1
            if not count:
                touched.setdefault(key, False)
        for key in reversed(run.keys[last:first]):
            if held[key] > 1:
                held[key] -= 1
            else:
                del held[key]
                touched.setdefault(key, True)

    # Groups besides the trunk

    def met(self, group: Group) -> None:
        """A group has appeared: it holds nothing yet, so what needs it is held no more."""
        for run in list(self._forest.all()):
            if group.lookback is not None:
                self._unsettled[run] = None
            elif run.parent is None:
                self._set_reach(run, 0)

    def regroup(self, group: Group, block: int) -> None:
        """A group took up its first copy of a block, or lost its last."""
        found = self._forest.find(block)
        if found is None:
            return
        run, position = found
        if group.lookback is not None:
            self._unsettled.update(dict.fromkeys(within(run, position, group.lookback)))
        elif block in group.copies:
            self.came(run, position)
        else:
            self.left(run, position)

    def _settle(self) -> None:
        """Claim runs up to their last usable boundary, or up to the last block that something usable hangs on."""
        before: dict[Run, int] = {}
        while self._unsettled:
            run = self._unsettled.popitem()[0]
            if not run.hashes:
                continue  # trimmed away
            claim = last_boundary(self._forest, run, self._groups.looking)
            for at, forks in run.forks.items():
                if claim <= at < run.reach and any(fork.claim for fork in forks):
                    claim = at + 1
            before.setdefault(run, run.claim)
            self._move_claim(run, claim)
        by_depth = sorted(before, key=self._forest.depth)
        for run in reversed(by_depth):
            if run.claim < before[run]:
                self._count(run, before[run])
        for run in by_depth:
            if run.claim > before[run]:
                self._count(run, before[run])
