"""Everything that a router asks of Redis, asked once: what is refused is then said at the start, not at a request.

The rights to run a script say nothing of the rights to the commands within it, and only a write tells a replica. So all
of it is done, in a pool of its own whose keys expire; pools in use are only read. What is refused `standing.py` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from extproc.base.errors import IndexUnavailable
from extproc.base.model import EventReport, Knowledge
from extproc.index import Change
from extproc.index.redis import CALL_BUDGET_S, RedisIndex
from extproc.shared_state.connections import CONNECT_S, close, connect, connect_to_one
from extproc.shared_state.leases import try_leases
from extproc.shared_state.link import Link
from extproc.shared_state.load_exchange import try_exchange, try_to_hear
from extproc.shared_state.redis_url import RedisUrl, parse
from extproc.shared_state.standing import PURPOSES, with_redis

POOL: Final = "extproc check"
AGAIN_S: Final = 5.0  # while something is refused: most of it is not asked for again unless a request needs it
_REMEMBER_S: Final = 60
_REPORT: Final = {"check": EventReport(Knowledge.UNKNOWN, -1, 0.0)}


async def try_all(address: RedisUrl, pools: Collection[str]) -> Sequence[tuple[str, BaseException]]:
    """What failed: what it was for, and what redis-py raised. Raises IndexUnavailable where Redis is away."""
    client, one = connect(address, 1), connect_to_one(address, 2)
    index = RedisIndex(connect(address, 8), namespace=address.namespace, match_budget_s=CALL_BUDGET_S)
    links = Link(client, 1, address.namespace), Link(one, 1, address.namespace)
    failed: list[tuple[str, BaseException]] = []
    try:
        for purpose, work in _asked(index, links, address.namespace, pools):
            try:
                await work()
            except IndexUnavailable as error:
                if error.__cause__ is None:
                    raise
                failed.append((purpose, error.__cause__))
    finally:
        await index.close()
        for link, its_client in zip(links, (client, one), strict=True):
            await link.close()
            await close(its_client)
    return failed


def _asked(
    index: RedisIndex, links: tuple[Link, Link], namespace: str, pools: Collection[str]
) -> Sequence[tuple[str, Callable[[], Awaitable[object]]]]:
    any_node, one_node = links
    leases = partial(try_leases, pool=POOL, namespace=namespace)
    tell, hear = partial(try_exchange, namespace=namespace), partial(try_to_hear, namespace=namespace)
    own: dict[str, Callable[[], Awaitable[object]]] = {
        "apply": partial(index.apply, [Change(POOL, "check", forget=True, add=[1])]),
        "report": partial(index.report, POOL, _REPORT),
        "match": partial(index.match, POOL, [1]),
        "sizes": partial(index.sizes, POOL),
        "sweep": partial(index.sweep, POOL),
        "remember": partial(index.remember, POOL, "check", "check", _REMEMBER_S),
        "recall": partial(index.recall, POOL, "check"),
        "renew": partial(any_node.run, "renew", CALL_BUDGET_S, leases, POOL),
        "publish_loads": partial(any_node.run, "publish_loads", CONNECT_S, tell),
        "hear_loads": partial(one_node.run, "hear_loads", 2 * CONNECT_S, hear),
    }
    asked = [(PURPOSES[call], work) for call, work in own.items()]
    for pool in pools:
        asked.append((f"read pool {pool}", partial(index.match, pool, [1])))
        asked += [(f"read pool {pool}", partial(call, pool)) for call in (index.sizes, index.reports)]
        asked.append((f"read pool {pool}", partial(index.recall, pool, "check")))
    for use in any_node.standing.refused:
        if use.call == "remember" and use.pool in pools:
            asked.append((str(use), partial(index.remember, use.pool, "check", "check", _REMEMBER_S)))
    return asked


async def watch(url: str, pools: Callable[[], Collection[str]]) -> None:
    """Try all once, and again for as long as something is refused; until it is cancelled. Raises ConfigError."""
    address = parse(url)
    client = connect(address, 1)  # of which only the address is wanted
    standing = with_redis(client, address.namespace)
    tried = False
    while True:
        if not tried or standing.refused:
            with suppress(IndexUnavailable):
                await try_all(address, pools())
                tried = True
            standing.keep({*pools(), POOL})
        await asyncio.sleep(AGAIN_S)
