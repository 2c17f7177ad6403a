"""Engine blocks as a forest: every block with its text, behind the block that it continues. Knows no event, no index.

Blocks are kept in *runs*: stretches of one prompt's consecutive blocks that hang on the block before them, like the
edges of a radix tree. One block each would cost an object; a run shares it between up to `LENGTH` blocks.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from extproc.base import blocks
from extproc.base.media import trimmed

LENGTH = 64  # engine blocks in a run: enough to share its overhead, few enough to search
BLOCK_BYTES = 128  # memory that an engine block takes besides its text (measured by bench/events.py)


class Run:
    """Consecutive engine blocks. Their text begins at a prompt block, so it starts with a tail of the parent's."""

    __slots__ = (
        "at", "claim", "claimed", "copies", "counted", "depth", "ends", "forks", "hashes", "keys", "loose", "marks",
        "parent", "seed", "solid", "stale", "start", "text", "usable",
    )  # fmt: skip

    def __init__(self, parent: int | None, at: int, depth: int, seed: int, tail: bytes) -> None:
        self.parent = parent  # hash of the block that it hangs on; not the run, which would be a cycle to collect
        self.at = at  # that block's position in its own run
        self.depth = depth  # runs from the prompt's beginning to this one
        self.seed = seed  # key of the prompt block before `text`
        self.start = len(tail)  # where the text of the first block starts
        self.text = bytearray(tail)
        self.keys: list[int] = []  # of the whole prompt blocks in `text`
        self.hashes: list[int] = []
        self.ends = array("I")  # where each block's text ends in `text`
        self.copies = array("I")  # of each block in the engine's cache; one without any is kept for what hangs on it
        self.loose = False  # whether a medium stands in it or before it: then `text` is no prompt's as it stands
        self.forks: dict[int, list[Run]] = {}  # by position of the block that they hang on
        # what held_keys.py knows of it
        self.solid = 0  # leading blocks that have copies
        self.usable = 0  # leading blocks up to the last one behind which all groups can go on
        self.claim = 0  # leading blocks whose keys are to be counted as held ...
        self.counted = 0  # ... and those whose keys are
        self.claimed: dict[int, int] = {}  # forks with a claim, by position of the block that they hang on
        self.marks: dict[int, tuple[Any, ...] | None] = {}  # how far the groups got at blocks that forks hang on
        self.stale = False  # whether it waits to be looked at

    def position(self, block: int) -> int:
        last = len(self.hashes) - 1
        return last if self.hashes[last] == block else self.hashes.index(block)

    def end(self, count: int) -> int:
        """Where the text of the first `count` blocks ends."""
        return self.ends[count - 1] if count else self.start


def held_behind(run: Run, position: int) -> Iterator[int]:
    """Hashes of the blocks that stand directly behind a block and have copies."""
    if position + 1 < len(run.hashes) and run.copies[position + 1]:
        yield run.hashes[position + 1]
    for fork in run.forks.get(position, ()):
        if fork.copies[0]:
            yield fork.hashes[0]


class Forest:
    """The runs of one instance."""

    def __init__(self, prompt_block_bytes: int) -> None:
        self._size = prompt_block_bytes
        self._runs: dict[int, Run] = {}  # by hash of each of their blocks
        self._text = 0  # bytes

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def memory(self) -> int:
        """Bytes of memory, estimated."""
        return self._text + BLOCK_BYTES * len(self._runs)

    @property
    def remains(self) -> dict[int, Run]:
        """What holds all of it: whoever has done with the forest may drop this piece by piece."""
        return self._runs

    def find(self, block: int) -> tuple[Run, int] | None:
        """The run and the position of a block."""
        run = self._runs.get(block)
        return None if run is None else (run, run.position(block))

    def knows(self, block: int) -> bool:
        """Whether this block is in the forest."""
        return block in self._runs

    def run(self, block: int) -> Run:
        """The run of a block that is in the forest."""
        return self._runs[block]

    def parent(self, run: Run) -> Run | None:
        """The run that this one hangs on; None where the prompt begins."""
        return None if run.parent is None else self._runs[run.parent]

    def tip(self, run: Run, position: int) -> int:
        """Key of the last whole prompt block up to the end of a block; a root where there is none."""
        whole = run.end(position + 1) // self._size
        return run.keys[whole - 1] if whole else run.seed

    def previous(self, run: Run, position: int) -> tuple[Run, int] | None:
        """The block before a block; None where the prompt begins."""
        if position:
            return run, position - 1
        parent = self.parent(run)
        return None if parent is None else (parent, run.at)

    def roots(self) -> Iterator[Run]:
        """The runs that begin prompts, each once."""
        seen = {id(run): run for run in self._runs.values() if run.parent is None}
        yield from seen.values()

    def lacks(self, hashes: Sequence[int]) -> bool:
        """Whether these are different blocks, none of them known."""
        return len(set(hashes)) == len(hashes) and self._runs.keys().isdisjoint(hashes)

    def grow(
        self,
        behind: tuple[Run, int] | None,
        root: int,
        hashes: Sequence[int],
        texts: Sequence[bytes],
        into: Run | None = None,
    ) -> Iterator[tuple[Run, int]]:
        """Add blocks, one copy each, behind a block or, with `root` as seed, at the beginning of a prompt; the first of
        them into this run of `loosened`, if there is one.

        Yields every stretch added: its run and the position of its first block. The blocks must be lacking.
        """
        done = 0
        while done < len(texts):
            run, into = into or self._room(behind, root), None
            first = len(run.hashes)
            until = min(done + LENGTH - first, len(texts))
            self._append(run, hashes[done:until], texts[done:until])
            yield run, first
            behind = run, len(run.hashes) - 1
            done = until

    def loosened(
        self, behind: tuple[Run, int] | None, root: int, raw: bytes, added: tuple[bytes, ...]
    ) -> tuple[Run, bytes]:
        """A run for the blocks from a prompt's first medium on, and what belongs to its text of `raw`, which stands
        before the medium. The text up to there is trimmed (`base/media.py`): its end is given up."""
        if behind is None:
            run = Run(None, -1, 0, root, b"")
            run.loose = True
            return run, trimmed(raw, added)
        parent, at = behind
        before = bytes(parent.text[: parent.ends[at]])
        kept = trimmed(before + raw, added)
        common = min(len(kept), len(before))
        run = self._fork(parent, at, common)
        run.loose = True
        return run, kept[common:]

    def trim(self, run: Run) -> None:
        """Drop blocks at the end of a run that have neither copies nor anything behind them, then up the tree."""
        while True:
            while run.hashes and not run.copies[-1] and len(run.hashes) - 1 not in run.forks:
                del self._runs[run.hashes.pop()]
                run.copies.pop()
                run.ends.pop()
            end = run.end(len(run.hashes))
            self._text -= len(run.text) - end
            del run.text[end:]
            del run.keys[end // self._size :]
            parent = self.parent(run)
            if run.hashes or parent is None:
                return
            siblings = parent.forks[run.at]
            siblings.remove(run)
            if not siblings:
                del parent.forks[run.at]
            run = parent

    def _room(self, behind: tuple[Run, int] | None, root: int) -> Run:
        """A run to append to: the one that ends there, while it has room and no fork, or else a new one."""
        if behind is None:
            return Run(None, -1, 0, root, b"")
        run, at = behind
        if at == len(run.hashes) - 1 < LENGTH - 1 and at not in run.forks:
            return run
        return self._fork(run, at, run.ends[at])

    def _fork(self, run: Run, at: int, end: int) -> Run:
        """A new run behind a block, whose text goes on where that of `run` ends."""
        whole = end // self._size
        seed = run.keys[whole - 1] if whole else run.seed
        fork = Run(run.hashes[at], at, run.depth + 1, seed, bytes(run.text[whole * self._size : end]))
        fork.loose = run.loose
        run.forks.setdefault(at, []).append(fork)
        self._text += fork.start
        return fork

    def _append(self, run: Run, hashes: Sequence[int], texts: Sequence[bytes]) -> None:
        run.ends.extend(accumulate(map(len, texts[1:]), initial=len(run.text) + len(texts[0])))
        added = b"".join(texts)
        run.text += added
        self._text += len(added)
        whole = len(run.keys)
        seed = run.keys[-1] if whole else run.seed
        run.keys += blocks.extend(bytes(run.text[whole * self._size :]), seed, self._size)
        run.hashes += hashes
        run.copies.extend([1] * len(hashes))
        self._runs.update(dict.fromkeys(hashes, run))
