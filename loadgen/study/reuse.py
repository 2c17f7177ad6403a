"""An infinite KV store: which of a prompt's blocks were there, who first produced them, when they were last used.

A radix tree over runs of names: a visit costs as many steps as the prompt has pieces of different history, not blocks.
Knows nothing of capacity, instances or time's passing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from loadgen.workloads.trace import Runs


@dataclass(frozen=True, slots=True)
class Found:
    """Consecutive blocks of a prompt that were in the store, with one history."""

    position: int  # of the first, in blocks from the prompt's beginning
    count: int
    producer: str  # the session that first had them
    end_s: float  # when the last request that used them had ended


class Store:
    """Prefixes by name. Only what is found from the beginning on counts: a block is of use with all before it."""

    def __init__(self) -> None:
        self._root = _Node(-1, 0, "", 0.0)

    def visit(self, prompt: Runs, session: str, end_s: float) -> list[Found]:
        """What the store has of a prompt; afterwards it has all of it, used by a request that ends at `end_s`."""
        found: list[Found] = []
        path = [self._root]
        position = 0
        rest = iter(prompt)
        run = next(rest, None)
        while run is not None:
            first, count = run
            node = path[-1].children.get(first)
            if node is None:
                break
            same = min(count, node.count)
            node.split(same)
            found.append(Found(position, same, node.producer, node.end_s))
            node.end_s = max(node.end_s, end_s)
            path.append(node)
            position += same
            run = (first + same, count - same) if same < count else next(rest, None)
        if run is not None:
            for first, count in (run, *rest):
                node = _Node(first, count, session, end_s)
                path[-1].children[first] = node
                path.append(node)
        _join(path[1:])
        return found


class _Node:
    """A run of names after its parent's. A class by hand: there are hundreds of thousands."""

    __slots__ = ("children", "count", "end_s", "first", "producer")

    def __init__(self, first: int, count: int, producer: str, end_s: float) -> None:
        self.first = first
        self.count = count
        self.producer = producer
        self.end_s = end_s
        self.children: dict[int, _Node] = {}

    def split(self, at: int) -> None:
        """Keep the first `at` names; the others become the only child."""
        if at == self.count:
            return
        tail = _Node(self.first + at, self.count - at, self.producer, self.end_s)
        tail.children = self.children
        self.count = at
        self.children = {tail.first: tail}


def _join(path: Iterable[_Node]) -> None:
    """Make one node of neighbours that no longer differ, so that a growing prompt stays a few nodes."""
    before: _Node | None = None
    for node in path:
        if (
            before is not None
            and len(before.children) == 1
            and before.first + before.count == node.first
            and before.producer == node.producer
            and before.end_s == node.end_s
        ):
            before.count += node.count
            before.children = node.children
        else:
            before = node
