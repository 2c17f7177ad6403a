"""Who reads a body, and how much of it may be read at once. Pure.

Owns the border between what is read where it stands, on the event loop, and what takes long. Refuses to know what
becomes of the latter: that is another `Reader`'s (processes beside the loop, in `serve`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from extproc.base.errors import TakesLong
from extproc.requests.cost import decoding_us
from extproc.routing.lora import Announced
from extproc.routing.pools.pool import Pool
from extproc.routing.query import Ask, Query, pool_for, pool_named, read

Announcements = Callable[[str], Announced]  # by a pool's name: the LoRA adapters that its engines announced

# The estimates err upwards, so this is some 5 ms of an agent's request; nothing that a client sends takes 20 ms.
MOST_US: Final = 15_000.0
SMALL_BYTES: Final = 4096  # cheap whatever is in them, and not worth an estimate
LARGE_BYTES: Final = 1 << 20  # never read at once: the mere copies of so much take milliseconds


class Reading(NamedTuple):
    """The pool that serves the request's model, and what the request asks of its caches."""

    pool: Pool
    query: Query


class Reader(Protocol):
    """Reads requests."""

    async def read(self, pools: Sequence[Pool], announced: Announcements, ask: Ask) -> Reading:
        """Read a request that one of these pools shall serve. Raises nothing: what goes wrong is the query's
        `degraded`."""


class AtOnce:
    """Reads whatever it is asked to, however long that takes: for commands and simulations."""

    async def read(self, pools: Sequence[Pool], announced: Announcements, ask: Ask) -> Reading:
        """As `Reader.read`."""
        return at_once(pools, announced, ask)


def at_once(pools: Sequence[Pool], announced: Announcements, ask: Ask, most_us: float = math.inf) -> Reading:
    """Read a request here and now. Raises TakesLong where that would take more than `most_us` microseconds."""
    body = ask.body
    if body is not None and len(body) > SMALL_BYTES and most_us < math.inf:
        if len(body) > LARGE_BYTES:
            raise TakesLong(f"{len(body)} bytes")
        most_us -= decoding_us(bytes(body))
        if most_us < 0:
            raise TakesLong("there is too much in it")
    named = pool_named(pools, announced, ask.models)
    pool = named if body is None else pool_for(pools, announced, bytes(body))
    return Reading(pool, read(pool, announced(pool.name), ask, most_us))
