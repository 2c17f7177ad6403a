"""The index that routers share: in one Redis, or a Redis Cluster, one hash a pool and a few atomic scripts.

It owns the client's side of what `pool.lua` describes, and the sweeping. `link.py` knows whether Redis is
there, `redis_names.py` what the ids in its answers mean, and `writes.py` whether our writes are still there.
"""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import TypeVar
from urllib.parse import quote

from extproc.base.errors import IndexLost, IndexUnavailable
from extproc.base.model import EventReport, Knowledge
from extproc.index import Change
from extproc.index.answers import totals
from extproc.index.redis_names import Directory, holder_of, split
from extproc.index.writes import Author, Writes, pack
from extproc.shared_state.connections import Client, close, connect
from extproc.shared_state.link import Link
from extproc.shared_state.redis_url import parse
from extproc.shared_state.script import Argument, Script

_T = TypeVar("_T")

# Part of every key's name. Routers of another layout ignore our keys, and their own expire (RETENTION_S).
SCHEMA = 1

CALL_BUDGET_S = 2.0  # of any call but a match: a round of writes, a report, a question of an operator
REMEMBER_BUDGET_S = 0.25  # a client waits for its first token meanwhile, and Envoy for a second at most
SLOTS = 4  # calls at a time for reading, and as many for writing, so that neither waits for the other

# A holder without a write or a report for so long has left, and a pool likewise; its entries are removed.
RETENTION_S = 3600
REPORT_LIFE_S = 5.0  # followers report every second; one that missed five has died

SWEEP_EVERY_S = 1.0
SWEEP_PAUSE_S = 0.002  # after each step, so that sweeping takes at most a tenth of Redis's time
SWEEP_FIELDS = 250  # a step: about a quarter of a millisecond
SWEEP_LEASE_S = 5.0

_MATCH, _APPLY, _REPORT, _READ, _SWEEP = (
    Script.read("extproc.index", "pool", name, keys=4) for name in ("match", "apply", "report", "read", "sweep")
)
_ENTRY = struct.Struct(">16sddd")  # owner, newest write applied, blocks held, heard of (ms)
_STAMP = struct.Struct(">d")


class RedisIndex:
    """The `Index` of `redis://`. Several routers use one; each makes its own client."""

    def __init__(self, client: Client, *, namespace: str, match_budget_s: float) -> None:
        self._client = client
        self._namespace = namespace
        self._match_budget_s = match_budget_s
        self._reads = Link(client, SLOTS, namespace)
        self._writes = Link(client, SLOTS, namespace)
        self._directories: dict[str, Directory] = defaultdict(Directory)
        self._author = Author()
        self._pools: dict[str, Writes] = {}  # those that this process writes to, and so sweeps
        self._sweeper: asyncio.Task[None] | None = None

    @classmethod
    def from_url(cls, url: str) -> RedisIndex:
        """See `redis_url.parse`. Raises ConfigError."""
        address = parse(url)
        client = connect(address, 2 * SLOTS)
        return cls(client, namespace=address.namespace, match_budget_s=address.budget_s)

    async def match(self, pool: str, chain: Sequence[int]) -> Mapping[str, int]:
        """See `Index`. One round trip, whatever the number of instances."""
        if not chain:
            return {}
        directory = self._directories[pool]
        arguments: list[Argument] = [*self._keys(pool), pack(chain), directory.epoch, directory.newest]

        async def call(client: Client) -> Mapping[str, int]:
            return directory.read(await _MATCH.run(client, arguments))

        return await self._reads.run("match", self._match_budget_s, call, pool)

    async def apply(self, changes: Sequence[Change]) -> None:
        """See `Index`. Many changes in one call cost fewer round trips than many calls."""
        pools: dict[str, list[Change]] = defaultdict(list)
        for change in changes:
            pools[change.pool].append(change)
        lost = {pool: await self._writes_to(pool).apply(its_changes) for pool, its_changes in pools.items()}
        for pool, instances in lost.items():
            if instances:
                raise IndexLost(pool, instances)

    def adapters(self, pool: str) -> Mapping[str, Set[str]]:
        """See `Index`. As of the last match, or question of an operator, that went through this client."""
        return self._directories[pool].adapters.instances

    async def sizes(self, pool: str) -> Mapping[str, int]:
        """See `Index`."""

        return await self._read("sizes", pool, lambda _, state: held_in(state))

    async def report(self, pool: str, reports: Mapping[str, EventReport]) -> None:
        """See `Index`."""
        writes = self._writes_to(pool)
        arguments: list[Argument] = [*self._keys(pool), RETENTION_S * 1000, self._author.owner(self._author.next())]
        for instance, report in reports.items():
            possession = writes.possession(holder_of(instance, ""))
            arguments += (
                instance,
                *possession,
                _written(report),
            )
        lost = await self._writes.run("report", CALL_BUDGET_S, lambda client: _REPORT.run(client, arguments), pool)
        if lost:
            raise IndexLost(pool, frozenset(instance.decode() for instance in lost))

    async def reports(self, pool: str) -> Mapping[str, EventReport]:
        """See `Index`."""

        return await self._read("reports", pool, reports_in)

    async def remember(self, pool: str, response: str, instance: str, ttl_s: int) -> None:
        """See `Index`."""
        name = self._response(pool, response)

        async def call(client: Client) -> None:
            await client.execute_command("SET", name, instance, "EX", ttl_s)

        await self._writes.run("remember", REMEMBER_BUDGET_S, call, pool)

    async def recall(self, pool: str, response: str) -> str | None:
        """See `Index`. Within a decision's budget."""
        name = self._response(pool, response)

        async def call(client: Client) -> str | None:
            held: bytes | None = await client.execute_command("GET", name)
            return None if held is None else held.decode()

        return await self._reads.run("recall", self._match_budget_s, call, pool)

    async def close(self) -> None:
        """See `Index`."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeper
        for writes in self._pools.values():
            await writes.close()
        for link in (self._reads, self._writes):
            await link.close()
        await close(self._client)

    async def _read(self, name: str, pool: str, of: Callable[[int, Sequence[bytes]], _T]) -> _T:
        directory = self._directories[pool]

        async def call(client: Client) -> _T:
            now_ms, state = await _READ.run(client, self._keys(pool))
            directory.learn_adapters(named(b"a:", state))
            return of(int(now_ms), state)

        return await self._reads.run(name, CALL_BUDGET_S, call, pool)

    def _keys(self, pool: str) -> tuple[str, ...]:
        """The four keys of a pool. What stands in braces decides the hash slot, so all are in one."""
        prefix = f"{self._namespace}:{SCHEMA}:{{{quote(pool, safe='')}}}"
        return (f"{prefix}:blocks", f"{prefix}:holders", f"{prefix}:adapters", f"{prefix}:state")

    def _response(self, pool: str, response: str) -> str:
        """The key under which a stored response's instance is found."""
        return f"{self._namespace}:{SCHEMA}:{{{quote(pool, safe='')}}}:response:{response}"

    def _writes_to(self, pool: str) -> Writes:
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().create_task(self._sweep())
        if pool not in self._pools:
            self._pools[pool] = Writes(
                self._writes,
                _APPLY,
                self._author,
                self._keys(pool),
                pool=pool,
                budget_s=CALL_BUDGET_S,
                retention_s=RETENTION_S,
            )
        return self._pools[pool]

    async def _sweep(self) -> None:
        """Writers sweep what they leave behind: one of all routers at a time, in small steps."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            for pool in tuple(self._pools):
                with suppress(IndexUnavailable):
                    await self.sweep(pool)

    async def sweep(self, pool: str) -> None:
        """Remove what is dead in a pool, unless another writer does. Raises IndexUnavailable."""
        lease_ms, retention_ms = int(SWEEP_LEASE_S * 1000), RETENTION_S * 1000
        step: list[Argument] = [*self._keys(pool), self._author.name, lease_ms, retention_ms, SWEEP_FIELDS]
        more = 1
        while more:
            more = await self._writes.run("sweep", CALL_BUDGET_S, lambda client: _SWEEP.run(client, step), pool)
            await asyncio.sleep(SWEEP_PAUSE_S)


def _written(report: EventReport) -> str:
    """Words; the cause, which may be several or none, comes last."""
    silent = "-" if report.silent_s is None else report.silent_s
    return f"{report.state.value} {report.sequence} {report.lag_s} {report.for_s} {silent} {report.cause}"


def _read_again(written: str) -> EventReport:
    """Earlier versions wrote the first three words only."""
    state, sequence, lag_s, *later = written.split(maxsplit=5)
    for_s, silent_s, cause = (*later, *("0", "-", "")[len(later) :])
    silence = None if silent_s == "-" else float(silent_s)
    return EventReport(Knowledge(state), int(sequence), float(lag_s), cause, float(for_s), silence)


def held_in(state: Sequence[bytes]) -> Mapping[str, int]:
    """Blocks held by instance, of the state hash. Others may write there, too: what cannot be read is left out."""
    shares: list[tuple[tuple[str, str], int]] = []
    for holder, entry in named(b"h:", state):
        with suppress(ValueError, OverflowError, struct.error):
            shares.append((split(holder), int(_ENTRY.unpack(entry)[2])))
    return totals(shares)


def reports_in(now_ms: int, state: Sequence[bytes]) -> Mapping[str, EventReport]:
    """The reports of followers that live, by instance, of the state hash. What cannot be read is left out."""
    reports: dict[str, EventReport] = {}
    for instance, value in named(b"r:", state):
        with suppress(ValueError, struct.error):
            # A report of the future is one by a clock that was set back, or by that of another server before it.
            if abs(now_ms - _STAMP.unpack_from(value)[0]) <= REPORT_LIFE_S * 1000:
                reports[instance.decode()] = _read_again(value[_STAMP.size :].decode())
    return reports


def named(prefix: bytes, state: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Fields of the state hash that begin with a prefix, without it, and their values."""
    for name, value in zip(state[::2], state[1::2], strict=True):
        if name.startswith(prefix):
            yield name[len(prefix) :], value
