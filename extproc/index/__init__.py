"""Which instance holds which prompt blocks: the contract of every backend (tests/extproc/index/test_contract.py).

Keys are unsigned 64-bit chain keys of `blocks.py`; a chain is the keys of one prompt from its first block on. The
writer guarantees that an instance holds a key only while it holds all earlier keys of that chain, so a backend may
bisect. Counting copies is the writer's duty (`mirror.py`): here a key is held or not.

Each instance has one writer at a time, which applies its changes one after the other: the follower of its events. In
`routed` pools every router writes what it sent: there `Change.writer` keeps them apart, each has its own entries, and
an instance holds what any of its writers added. A writer begins with `forget`; without it, it continues from what is
there. After `IndexLost` it begins with `forget` again: what it wrote is gone, or another took the instance over.

Routers may note beside an instance's own writer what they sent there: prompts with media, of which its events cannot
tell. Such a writer's name begins with `GUESSES`: its entries end when the instance's own writer forgets it, it then
hears `IndexLost`, and they are not counted in `sizes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from extproc.base.model import EventReport

GUESSES = "~"  # the name of a writer of guesses begins so

# LoRA adapters of one instance. An engine that has had more is known by the newest: those in use announce themselves
# again whenever it starts anew.
MAX_ADAPTERS = 1000


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one instance's cache, in order: forget, remove, add. A key is in at most one of both lists."""

    pool: str
    instance: str  # Instance.name
    forget: bool = False  # all that this writer wrote about the instance, in O(1)
    remove: Sequence[int] = ()  # a chain's later keys before its earlier ones
    add: Sequence[int] = ()  # a chain's earlier keys before its later ones
    adapters: Sequence[str] | None = None  # all LoRA adapters that the engine announced; None: as before, or none
    writer: str = ""  # which of several writers this is; empty where there is only one


class Index(Protocol):
    """Every method raises `errors.IndexUnavailable` when the backend does not answer in time, and nothing else.

    `apply` and `report` may raise its subclass `errors.IndexLost`, which names the instances to begin again with.
    """

    async def match(self, pool: str, chain: Sequence[int]) -> Mapping[str, int]:
        """How many leading blocks of the chain each instance holds, by name; an instance that holds none is absent."""

    async def apply(self, changes: Sequence[Change]) -> None:
        """Write changes in order. Idempotent: adding a held key or removing an absent one changes nothing.

        After IndexUnavailable some of the changes may have been written: apply the same ones again. After IndexLost
        the changes of all other instances were.
        """

    def adapters(self, pool: str) -> Mapping[str, Set[str]]:
        """LoRA adapters announced in the pool's events, each with the instances that did; may lag, never blocks.

        An instance that forgets has none. At most MAX_ADAPTERS of an instance are given.
        """

    async def sizes(self, pool: str) -> Mapping[str, int]:
        """Prompt blocks held, by instance name; an instance that holds none is absent. For operators: may cost time.

        Of several writers of an instance the blocks are added up, though they may have some in common. Guesses do not
        count.
        """

    async def report(self, pool: str, reports: Mapping[str, EventReport]) -> None:
        """Tell every router that shares this index where the followers of events stand, by instance name.

        Of all instances of the pool that this process follows, at least once a second.
        """

    async def reports(self, pool: str) -> Mapping[str, EventReport]:
        """The newest reports, by instance name; those older than some seconds (their follower died) are absent."""

    async def remember(self, pool: str, response: str, instance: str, ttl_s: int) -> None:
        """This instance keeps a response under this id. For about `ttl_s` seconds, or as long as there is room."""

    async def recall(self, pool: str, response: str) -> str | None:
        """The instance that keeps a response; None where it is not remembered."""

    async def close(self) -> None:
        """Release connections. No method may be called after it."""
