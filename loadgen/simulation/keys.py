"""From the names of a trace's blocks to the keys under which an instance caches a request's prompt and reply.

A name stands for a block and all before it, so a coarser cache takes every n-th name. A reply's blocks have the names
that the next turn's prompt shows at their place, up to the end of the last reply in it; what no later prompt shows is
named by nothing else.

Keys are small and dense, 0 to `count`, so that a cache can be an array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from loadgen.workloads.trace import Dense, Runs, Trace, TraceRequest, cut, length

KeyArray = npt.NDArray[np.int32]


class Keys:
    """The keys of a trace's requests, for caches of `block_size` tokens. Each request is asked for once."""

    def __init__(self, trace: Trace, block_size: int) -> None:
        """Raises ValueError where `block_size` is no multiple of the trace's."""
        self._every, rest = divmod(block_size, trace.block_size)
        if rest or not self._every:
            raise ValueError(f"block size {block_size} is no multiple of the trace's, {trace.block_size} tokens")
        self._block_size = block_size
        self._next = _next(trace.requests)
        self._dense = Dense(request.blocks for request in trace.requests)
        self._nameless = self._dense.count
        spare = sum(request.output // block_size + 2 for request in trace.requests)
        padding = sum(max(0, request.input // trace.block_size - length(request.blocks)) for request in trace.requests)
        self.count = self._nameless + spare + padding

    def of(self, request: TraceRequest) -> KeyArray:
        """Keys of the whole blocks of prompt and reply, without the reply's last token, which is never computed."""
        prompt = request.input // self._block_size
        whole = (request.input + request.output - 1) // self._block_size
        keys = self._keys(request.blocks, prompt)
        if len(keys) == prompt and (after := self._next.get(request.id)):
            following = self._keys(after.blocks, min(whole, _replies_end(after) // self._block_size))
            if not prompt or (len(following) >= prompt and following[prompt - 1] == keys[-1]):
                keys = following
        missing = whole - len(keys)
        if missing > 0:
            fresh = np.arange(self._nameless, self._nameless + missing, dtype=np.int32)
            self._nameless += missing
            keys = np.concatenate((keys, fresh))
        return keys

    def _keys(self, runs: Runs, count: int) -> KeyArray:
        """The keys at positions every - 1, 2 * every - 1, ..., at most `count` of them."""
        parts = [
            np.arange(start, start + size, dtype=np.int32)
            for start, size in self._dense.of(cut(runs, 0, count * self._every))
        ]
        if not parts:
            return np.empty(0, np.int32)
        return np.concatenate(parts)[self._every - 1 :: self._every]


def _next(requests: Sequence[TraceRequest]) -> Mapping[str | None, TraceRequest]:
    """By id of a request the one that goes on from it: the next of its session, else the first that forked there."""
    sessions = {request.id: request.session for request in requests}
    children = [request for request in reversed(requests) if request.parent is not None]  # of several the first stays
    forks = {child.parent: child for child in children}
    return forks | {child.parent: child for child in children if child.session == sessions.get(child.parent or "")}


def _replies_end(request: TraceRequest) -> int:
    """Up to where a prompt may show replies, in tokens."""
    if not request.turn:
        return 0
    return request.history or request.input  # a turn without a history: the trace does not say
