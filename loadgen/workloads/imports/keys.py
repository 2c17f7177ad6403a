"""Token ids -> names of their blocks, and marks: whole prompts are known here, so every block has a key."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from extproc.base import blocks
from loadgen.workloads.imports.sessions import Mark
from loadgen.workloads.trace import Runs, joined

BLOCK_SIZE = 16  # tokens: vLLM's own default, so that whole blocks of the trace are whole blocks of an engine
_ID = 4  # bytes


class Keys:
    """Names blocks one after the other as they come, so that what is new of a prompt is one run."""

    def __init__(self, block_size: int = BLOCK_SIZE) -> None:
        self._size = block_size
        self._names: dict[int, int] = {}

    def of(self, ids: array[int], root: str = "") -> tuple[Runs, Sequence[Mark]]:
        """Names and marks of the whole blocks; `root` separates prompts that no engine would share."""
        chain = blocks.extend(array("I", ids).tobytes(), blocks.root(root), self._size * _ID)
        names = [self._names.setdefault(key, len(self._names)) for key in chain]
        return joined(names), list(enumerate(chain, 1))
