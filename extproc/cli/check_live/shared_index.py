"""The Redis of `--index`: is it there, may we do there what the router does, and does it take writes?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from redis.exceptions import RedisClusterException, RedisError

from extproc.base.errors import IndexUnavailable
from extproc.cli.check_live.findings import Finding, failed, ok
from extproc.cli.check_live.network import TRY_S, attempt, why
from extproc.index.trial import try_all
from extproc.shared_state import refusals
from extproc.shared_state.connections import Client, close, connect, where
from extproc.shared_state.redis_url import RedisUrl, parse

_TRY_S: Final = 8.0  # a dozen commands, each at once
_REACH: Final = "start Redis, or correct host, port and TLS (rediss://) in the index URL"


async def shared_index(url: str, pools: Sequence[str]) -> Sequence[Finding]:
    """What `serve --index URL` would meet there for these pools; nothing for an index in memory.

    Raises ConfigError for a wrong URL.
    """
    if url.startswith("memory:"):
        return ()
    logging.getLogger("extproc.shared_state").addHandler(logging.NullHandler())  # what it would say, findings do
    address = parse(url)
    client = connect(address, 4)
    what = f"index {where(client)}"
    try:
        return await attempt(_try(client, address, pools, what), lambda reason: [failed(what, reason, _REACH)], _TRY_S)
    finally:
        await close(client)


async def _try(client: Client, address: RedisUrl, pools: Sequence[str], what: str) -> Sequence[Finding]:
    try:
        async with asyncio.timeout(TRY_S):
            await client.execute_command("PING")
    except (RedisError, RedisClusterException, OSError) as error:
        return [failed(what, _words(error), _remedy(error, address) or _REACH)]
    try:
        refused = await try_all(address, pools)
    except IndexUnavailable as error:
        return [failed(what, str(error), _REACH)]
    if not refused:
        return [ok(what, "takes reads, writes, leases and loads")]
    by_remedy: dict[str, list[tuple[str, BaseException]]] = {}
    for purpose, refusal in refused:
        by_remedy.setdefault(_remedy(refusal, address) or _REACH, []).append((purpose, refusal))
    return [
        failed(what, f"{_words(same[0][1])} (asked to {', '.join(dict(same))})", remedy)
        for remedy, same in by_remedy.items()
    ]


def _words(error: BaseException) -> str:
    refusal = refusals.read(error)
    return refusal.words if refusal else why(error)


def _remedy(error: BaseException, address: RedisUrl) -> str | None:
    refusal = refusals.read(error)
    if refusal is None:
        return None
    return refusals.remedy(refusal.cause, namespace=address.namespace, cluster=address.cluster)
