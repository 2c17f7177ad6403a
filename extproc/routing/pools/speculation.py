"""Hints: where prompts of the last moments went. They bridge the time from a decision to the events of its prefill.

A hint stands beside the index and is never written to it. It knows prompts as chains of keys, and time as seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class _Sent(NamedTuple):
    instance: str
    keys: Sequence[int]
    at: float


class Speculation:
    """Where prompts of the last moments went, so that a burst of follow-ups finds them before the engine tells of them.

    Only what the index did not know of a prompt is remembered: at most `capacity_blocks` keys, each for at most `ttl_s`
    seconds. A key belongs to the newest prompt that has it, so only the instance that was chosen last is found.
    """

    def __init__(self, capacity_blocks: int = 262_144, ttl_s: float = 5.0) -> None:
        self._capacity = capacity_blocks
        self._ttl_s = ttl_s
        self._prompts: deque[_Sent] = deque()  # the oldest first
        self._newest: dict[int, _Sent] = {}  # by key
        self._blocks = 0  # in all prompts

    def __len__(self) -> int:
        """Blocks remembered; one of two prompts counts twice."""
        return self._blocks

    def expire(self, now: float) -> None:
        """Forget what is too old; `note` and `match` do so too, but an idle pool calls neither."""
        self._trim(now)

    def note(self, instance: str, chain: Sequence[int], known: int, now: float) -> None:
        """A prompt was sent, of which the index knew that the instance holds `known` leading blocks."""
        sent = _Sent(instance, chain[known : known + self._capacity], now)
        if sent.keys:
            self._prompts.append(sent)
            self._blocks += len(sent.keys)
            self._newest.update(dict.fromkeys(sent.keys, sent))
        self._trim(now)

    def match(self, chain: Sequence[int], hits: Mapping[str, int], now: float) -> Mapping[str, int]:
        """`hits` of the index, and what was sent meanwhile: leading blocks by instance name."""
        self._trim(now)
        start = low = max(hits.values(), default=0)
        high = len(chain)
        while low < high:
            middle = (low + high) // 2
            if chain[middle] in self._newest:
                low = middle + 1
            else:
                high = middle
        if low == start:
            return hits
        return {**hits, self._newest[chain[low - 1]].instance: low}

    def _trim(self, now: float) -> None:
        while self._prompts and (self._blocks > self._capacity or now - self._prompts[0].at >= self._ttl_s):
            gone = self._prompts.popleft()
            self._blocks -= len(gone.keys)
            for key in gone.keys:
                if self._newest.get(key) is gone:
                    del self._newest[key]
