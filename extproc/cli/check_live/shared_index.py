"""The Redis of `--index`: is it there, may we do there what the router does, and does it take writes?

What the router does is done, in a pool of its own whose keys expire: the rights to run a script say nothing of the
rights to the commands within it, and only a write tells a replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, RedisClusterException, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError

from extproc.base.errors import IndexUnavailable
from extproc.base.model import EventReport, Knowledge
from extproc.cli.check_live.findings import Finding, failed, ok
from extproc.cli.check_live.network import TRY_S, attempt, why
from extproc.index import Change
from extproc.index.redis import RedisIndex
from extproc.shared_state.connections import Client, connect, connect_to_one, where
from extproc.shared_state.leases import try_leases
from extproc.shared_state.load_exchange import try_exchange
from extproc.shared_state.redis_url import RedisUrl, parse

POOL: Final = "extproc check --live"
_TRY_S: Final = 8.0  # a dozen commands, each at once
_REMEMBER_S: Final = 60

# Of a user in Redis, by namespace; the test of a deployment that is well has no more.
RIGHTS: Final = "resetchannels ~{0}:* &{0}:* +@read +@write +@scripting +@connection +@pubsub +time"
_IN_CLUSTER: Final = " +cluster +command"
_REMEDIES: Final = (
    (
        ("NOAUTH", "WRONGPASS", "invalid username-password", "Authentication"),
        "correct user and password in the index URL",
    ),
    (("READONLY", "read only replica", "read-only replica"), "give the address of the master, or one that follows it"),
    (("MASTERDOWN",), "this replica has lost its master: give the master's address"),
    (("CLUSTERDOWN", "Cluster cannot be connected"), "look at CLUSTER INFO: slots are not served"),
    (("MovedError", "AskError"), "add cluster=true to the index URL"),
    (("OOM", "'maxmemory'"), "raise maxmemory, or set maxmemory-policy allkeys-lru"),
    (("MISCONF",), "Redis cannot save to disk and refuses writes: free the disk, or stop-writes-on-bgsave-error no"),
    (("WRONGTYPE",), "another application's keys stand where ours would: write namespace=NAME in the index URL"),
    (("LOADING",), "it is still reading its data from disk: wait"),
)
_REACH: Final = "start Redis, or correct host, port and TLS (rediss://) in the index URL"


async def shared_index(url: str, pools: Sequence[str]) -> Sequence[Finding]:
    """What `serve --index URL` would meet there for these pools; nothing for an index in memory.

    Raises ConfigError for a wrong URL.
    """
    if url.startswith("memory:"):
        return ()
    address = parse(url)
    client = connect(address, 4)
    what = f"index {where(client)}"
    try:
        return await attempt(_try(client, address, pools, what), lambda reason: [failed(what, reason, _REACH)], _TRY_S)
    finally:
        await client.aclose()


async def _try(client: Client, address: RedisUrl, pools: Sequence[str], what: str) -> Sequence[Finding]:
    try:
        async with asyncio.timeout(TRY_S):
            await client.execute_command("PING")
    except (RedisError, RedisClusterException, OSError) as error:
        return [failed(what, _words(error), _remedy(error, address) or _REACH)]
    index = RedisIndex(connect(address, 8), namespace=address.namespace, match_budget_s=_TRY_S / 2)
    one = connect_to_one(address, 2)
    try:
        refused = await _refusals(index, client, one, address, pools)
    finally:
        await index.close()
        await one.aclose()
    if not refused:
        return [ok(what, "takes reads, writes, leases and loads")]
    by_remedy: dict[str, list[tuple[str, BaseException]]] = {}
    for purpose, refusal in refused:
        by_remedy.setdefault(_remedy(refusal, address) or _REACH, []).append((purpose, refusal))
    return [
        failed(what, f"{_words(same[0][1])} (asked to {', '.join(purpose for purpose, _ in same)})", remedy)
        for remedy, same in by_remedy.items()
    ]


async def _refusals(
    index: RedisIndex, client: Client, one: Redis, address: RedisUrl, pools: Sequence[str]
) -> Sequence[tuple[str, BaseException]]:
    """What the router would ask for, each by its purpose, and what Redis says where it refuses."""
    report = {"check": EventReport(Knowledge.UNKNOWN, -1, 0.0)}
    asked: tuple[tuple[str, Callable[[], Awaitable[object]]], ...] = (
        ("store blocks", partial(index.apply, [Change(POOL, "check", forget=True, add=[1])])),
        ("report followers", partial(index.report, POOL, report)),
        ("look up prompts", partial(index.match, POOL, [1])),
        ("show the state", partial(index.sizes, POOL)),
        ("sweep", partial(index.sweep, POOL)),
        ("remember responses", partial(index.remember, POOL, "check", "check", _REMEMBER_S)),
        ("recall responses", partial(index.recall, POOL, "check")),
        ("lease engines", partial(try_leases, client, POOL, namespace=address.namespace)),
        ("exchange loads", partial(try_exchange, one, namespace=address.namespace)),
        *((f"read pool {pool}", partial(index.sizes, pool)) for pool in pools),
    )
    refused: list[tuple[str, BaseException]] = []
    for purpose, work in asked:
        try:
            await work()
        except IndexUnavailable as error:
            refused.append((purpose, error.__cause__ or error))
        except (RedisError, RedisClusterException, OSError) as error:
            refused.append((purpose, error))
    return refused


def _words(error: BaseException) -> str:
    if isinstance(error, AuthenticationError):
        return f"it refuses the password ({error})"
    if isinstance(error, OSError | TimeoutError | RedisConnectionError):
        return why(error)
    text = str(error)
    if "READONLY" in text or "read only replica" in text:
        return "this is a replica, which takes no writes"
    if _lacks_rights(text):
        return f"this user lacks rights: {text}"
    return text


def _lacks_rights(text: str) -> bool:
    return any(words in text for words in ("NOPERM", "no permissions", "ACL failure", "can't run this command"))


def _remedy(error: BaseException, address: RedisUrl) -> str | None:
    text = f"{type(error).__name__} {error}"
    if _lacks_rights(text):
        rights = RIGHTS.format(address.namespace) + (_IN_CLUSTER if address.cluster else "")
        return f"give this user the rights: ACL SETUSER NAME {rights}"
    return next((remedy for signs, remedy in _REMEDIES if any(sign in text for sign in signs)), None)
