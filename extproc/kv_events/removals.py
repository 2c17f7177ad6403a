"""What a removal means: that one copy of a block left, or that the last one did. Knows blocks by group and hash.

Engines hold a block in several copies: two requests that begin alike and come at once, or a prompt computed again. vLLM
announces each copy as stored and each as removed; a change under way there announces a removal once, with the last
copy. Nothing in the events says which, so it is learned from what an engine does:

- A block is removed, and one that hangs on it is counted as held, though it was removed once. Engines evict what hangs
  on a block first: the one removal was of the last copy.
- A block is removed that was taken for gone after one removal: there was another copy.

Until then each removal is one copy's. Either way is believed until the other shows, across restarts of the engine.
"""

from __future__ import annotations

from collections.abc import Iterable

Block = tuple[int, int]  # the group's number, the block's hash

MOST = 4096  # blocks in doubt; what is beyond is decided as it stands


class Removals:
    """How one engine announces removals: of each copy, or of the last only."""

    def __init__(self) -> None:
        self._last_only = False
        # Blocks that were removed since they were stored last, with the copies left if each removal is one copy's.
        self._doubts: dict[Block, int] = {}

    def clear(self) -> None:
        """Nothing is held any more; the engine is as it is."""
        self._doubts.clear()

    def stored(self, block: Block) -> None:
        """A copy was stored."""
        if self._doubts:
            self._doubts.pop(block, None)

    def left(self, block: Block, copies: int) -> int:
        """How many of a block's `copies`, at least one, are left after a removal."""
        if copies > 1:
            self._doubts[block] = copies - 1
            if len(self._doubts) > MOST:
                del self._doubts[next(iter(self._doubts))]
            return 0 if self._last_only else copies - 1
        self._doubts.pop(block, None)
        return 0

    def shows_last_only(self, behind: Iterable[Block]) -> bool:
        """Whether a block that is gone shows it, on which these hang that are held."""
        return not self._last_only and bool(self._doubts) and any(block in self._doubts for block in behind)

    def shows_each(self, block: Block) -> bool:
        """Whether the removal of a block that has no copies shows it."""
        return self._last_only and block in self._doubts

    def turn(self) -> dict[Block, int]:
        """Believe the other from now on; the copies that each block in doubt has by that."""
        self._last_only = not self._last_only
        doubts, self._doubts = self._doubts, {}
        return dict.fromkeys(doubts, 0) if self._last_only else doubts
