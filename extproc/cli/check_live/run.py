"""All tries at once, within a time that does not grow with what hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeVar

from aiohttp import ClientSession, TCPConnector

from extproc.base.model import Source
from extproc.cli.check_live import engines, events, names, servers, shared_index
from extproc.cli.check_live.findings import Finding
from extproc.config import PoolSettings, Server

AT_ONCE: Final = 512  # tries, a descriptor each; a thousand engines that all hang are told within half a minute

_T = TypeVar("_T")


async def run(pools: Sequence[PoolSettings], ext_proc: Sequence[Server], index: str) -> list[Finding]:
    """Everything that can be tried of these, in the order of the file. Raises ConfigError for a wrong index URL."""
    files = {pool.name: engines.model(pool) for pool in pools}  # takes its time, so not while answers are waited for
    tries = _Tries()
    async with ClientSession(connector=TCPConnector(limit=0)) as http, asyncio.TaskGroup() as tasks:
        of_servers = [tasks.create_task(tries.one(servers.server(one))) for one in ext_proc]
        of_index = tasks.create_task(shared_index.shared_index(index, [pool.name for pool in pools]))
        of_pools = [tasks.create_task(_pool(http, pool, files[pool.name][0], tries)) for pool in pools]
    findings = [finding for _, finding in files.values() if finding is not None]
    findings += [finding for task in of_pools for finding in task.result()]
    return [*findings, *of_index.result(), *(task.result() for task in of_servers)]


class _Tries:
    """So many at a time: a machine has only so many descriptors."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def one(self, work: Coroutine[Any, Any, _T]) -> _T:
        """The result of `work`, when it is its turn."""
        async with self._turn:
            return await work


async def _pool(http: ClientSession, pool: PoolSettings, files: engines.Model | None, tries: _Tries) -> list[Finding]:
    found = await tries.one(names.find(pool))
    addresses = list(dict.fromkeys(instance.address for instance in found.instances))  # ranks share one
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(tries.one(engines.engine(http, pool, one, files))) for one in addresses]
        heard = []
        for instance in found.instances if pool.source is Source.EVENTS else ():
            if instance.kv_events is not None:
                heard.append(tasks.create_task(tries.one(events.events(pool.name, instance))))
            if instance.kv_replay is not None:
                heard.append(tasks.create_task(tries.one(events.replay(pool.name, instance))))
    served = [task.result() for task in asked]
    findings = [*found.findings, *(finding for one in served for finding in one.findings)]
    return [*findings, *engines.strangers(served), *(task.result() for task in heard)]
