"""Which instance holds which prompt blocks: the contract that every backend keeps (tests/index/test_contract.py).

Keys are unsigned 64-bit chain keys of `blocks.py`; a chain is the keys of one prompt from its first block on. Who
writes guarantees that an instance holds a key only while it holds all earlier keys of that chain, so a backend may
bisect. Counting copies is the writer's duty (`mirror.py`): here a key is held or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from extproc.model import EventReport


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one instance's cache, in order: forget, remove, add. A key is in at most one of both lists."""

    pool: str
    instance: str  # Instance.name
    forget: bool = False
    remove: Sequence[int] = ()
    add: Sequence[int] = ()
    adapters: Sequence[str] = ()  # LoRA adapters that the engine announced


class Index(Protocol):
    """Every method raises `errors.IndexUnavailable` when the backend does not answer in time, and nothing else."""

    async def match(self, pool: str, chain: Sequence[int]) -> Mapping[str, int]:
        """How many leading blocks of the chain each instance holds, by instance name; who holds none is absent."""

    async def apply(self, changes: Sequence[Change]) -> None:
        """Write changes in order. Idempotent: adding a held key or removing an absent one changes nothing."""

    def adapters(self, pool: str) -> frozenset[str]:
        """Names of LoRA adapters announced in the pool's events; may lag by some seconds, never blocks."""

    async def sizes(self, pool: str) -> Mapping[str, int]:
        """Prompt blocks held, by instance name. For operators, not for the request path: may cost time."""

    async def report(self, pool: str, reports: Mapping[str, EventReport]) -> None:
        """Tell every router that shares this index where the followers of events stand, by instance name."""

    async def reports(self, pool: str) -> Mapping[str, EventReport]:
        """The newest reports, by instance name; those older than some seconds (their follower died) are absent."""

    async def close(self) -> None:
        """Release connections. No method may be called after it."""
