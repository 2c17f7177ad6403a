"""The index that routers share: in one Redis, or a Redis Cluster, one hash a pool and a few atomic scripts.

It owns the client's side of what `pool.lua` describes: packing, batching, and who owns what was written. Whether Redis
is there is `redis_link.py`'s to know, what the ids in its answers mean `directory.py`'s.

Every write carries the owner that the writer takes itself for, and a number that only rises. So a write runs once
however often it was sent; one that Redis reads late (it was stopped, another connection was faster) is ignored; and a
writer whose entries are gone or another's hears `IndexLost` instead of building on them: after FLUSHALL, an eviction, a
restart from an old snapshot, a failover that dropped acknowledged writes, a takeover by another follower.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import resources
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from extproc.errors import IndexLost, IndexUnavailable
from extproc.index import MAX_ADAPTERS, Change
from extproc.index.directory import Directory, holder_of, instance_of
from extproc.model import EventReport, Knowledge
from extproc.redis_link import DEFAULT_NAMESPACE, Argument, Client, Link, Script, connect, parse

_T = TypeVar("_T")

# Part of every key's name. Routers of another layout ignore our keys, and theirs free themselves (RETENTION_S).
SCHEMA = 1

MATCH_BUDGET_S = 0.020  # a decision goes without the index after it
CALL_BUDGET_S = 1.0  # any other call: a round of writes, a report, a question of an operator
SLOTS = 4  # calls at a time for reading, and as many for writing, so that neither waits for the other

KEYS_A_CALL = 512  # about half a millisecond of Redis, in which nothing else is served
CALLS_A_ROUND = 64  # pipelined, under one budget

# A holder that nobody wrote or reported for so long has left, and a pool likewise; its entries go.
RETENTION_S = 3600
REPORT_LIFE_S = 5.0  # followers report every second; one that missed five has died

SWEEP_EVERY_S = 1.0
SWEEP_PAUSE_S = 0.002  # after each step, so that sweeping takes at most a tenth of Redis's time
SWEEP_FIELDS = 250  # a step: about a quarter of a millisecond
SWEEP_LEASE_S = 5.0


def _script(name: str) -> Script:
    here = resources.files("extproc.index")
    return Script(f"{here.joinpath('pool.lua').read_text()}\n{here.joinpath(f'{name}.lua').read_text()}", keys=4)


_MATCH, _APPLY, _REPORT, _READ, _SWEEP = (_script(name) for name in ("match", "apply", "report", "read", "sweep"))
_ENTRY = struct.Struct(">16sddd")  # owner, newest write applied, blocks held, heard of (ms)
_STAMP = struct.Struct(">d")


class _Piece(NamedTuple):
    """A part of a change that is small enough for one call."""

    instance: str
    holder: bytes
    forget: bool
    remove: Sequence[int]
    add: Sequence[int]
    adapters: Sequence[str]


class _Possession(NamedTuple):
    """What a holder's entry in Redis must say for our writes to it to be still there."""

    owner: bytes
    acknowledged: int  # number of the newest write that Redis confirmed


_NOTHING = _Possession(b"", 0)


class RedisIndex:
    """The `Index` of `redis://`. Several routers use one; each makes its own client."""

    def __init__(
        self, client: Client, *, namespace: str = DEFAULT_NAMESPACE, match_budget_s: float = MATCH_BUDGET_S
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._match_budget_s = match_budget_s
        self._reads = Link(client, SLOTS)
        self._writes = Link(client, SLOTS)
        self._directories: dict[str, Directory] = defaultdict(Directory)
        self._me = secrets.token_bytes(8)
        self._numbers = itertools.count(1)
        self._possessions: dict[tuple[str, bytes], _Possession] = {}
        self._written: set[str] = set()  # pools to sweep
        self._sweeper: asyncio.Task[None] | None = None

    @classmethod
    def from_url(cls, url: str, *, match_budget_s: float = MATCH_BUDGET_S) -> RedisIndex:
        """See `redis_link.parse`. Raises ConfigError."""
        address = parse(url)
        return cls(connect(address, 2 * SLOTS), namespace=address.namespace, match_budget_s=match_budget_s)

    async def match(self, pool: str, chain: Sequence[int]) -> Mapping[str, int]:
        """See `Index`. One round trip, whatever the number of instances."""
        if not chain:
            return {}
        directory = self._directories[pool]
        arguments: list[Argument] = [*self._keys(pool), _pack(chain), directory.epoch, directory.newest]

        async def call(client: Client) -> Mapping[str, int]:
            return directory.read(await _MATCH.run(client, arguments))

        return await self._reads.run("match", self._match_budget_s, call)

    async def apply(self, changes: Sequence[Change]) -> None:
        """See `Index`. Many changes in one call cost fewer round trips than many calls."""
        pools: dict[str, list[Change]] = defaultdict(list)
        for change in changes:
            pools[change.pool].append(change)
        lost: dict[str, set[str]] = defaultdict(set)
        for pool, its_changes in pools.items():
            self._sweep_later(pool)
            pieces = _pieces(its_changes)
            while some := list(itertools.islice(pieces, CALLS_A_ROUND)):
                await self._write(pool, some, lost[pool])
        for pool, instances in lost.items():
            if instances:
                raise IndexLost(pool, frozenset(instances))

    def adapters(self, pool: str) -> frozenset[str]:
        """See `Index`. As of the last match, or question of an operator, that went through this client."""
        return self._directories[pool].adapters

    async def sizes(self, pool: str) -> Mapping[str, int]:
        """See `Index`."""

        def held(_: int, state: Sequence[bytes]) -> Mapping[str, int]:
            sizes: dict[str, int] = defaultdict(int)
            for holder, entry in _named(b"h:", state):
                sizes[instance_of(holder)] += int(_ENTRY.unpack(entry)[2])
            return {instance: blocks for instance, blocks in sizes.items() if blocks}

        return await self._read("sizes", pool, held)

    async def report(self, pool: str, reports: Mapping[str, EventReport]) -> None:
        """See `Index`."""
        self._sweep_later(pool)
        arguments: list[Argument] = [*self._keys(pool), RETENTION_S * 1000, self._owner(next(self._numbers))]
        for instance, report in reports.items():
            possession = self._possessions.get((pool, holder_of(instance, "")), _NOTHING)
            arguments += (instance, *possession, f"{report.state.value} {report.sequence} {report.lag_s}")
        lost = await self._writes.run("report", CALL_BUDGET_S, lambda client: _REPORT.run(client, arguments))
        if lost:
            raise IndexLost(pool, frozenset(instance.decode() for instance in lost))

    async def reports(self, pool: str) -> Mapping[str, EventReport]:
        """See `Index`."""

        def newest(now_ms: int, state: Sequence[bytes]) -> Mapping[str, EventReport]:
            reports: dict[str, EventReport] = {}
            for instance, value in _named(b"r:", state):
                if now_ms - _STAMP.unpack_from(value)[0] <= REPORT_LIFE_S * 1000:
                    knowledge, sequence, lag_s = value[_STAMP.size :].decode().split()
                    reports[instance.decode()] = EventReport(Knowledge(knowledge), int(sequence), float(lag_s))
            return reports

        return await self._read("reports", pool, newest)

    async def close(self) -> None:
        """See `Index`."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeper
        for link in (self._reads, self._writes):
            await link.close()
        with suppress(Exception):  # the connections are given up in any case
            await self._client.aclose()

    async def _write(self, pool: str, pieces: Sequence[_Piece], lost: set[str]) -> None:
        """Write in one round trip; brings `lost` up to date."""
        calls: list[Sequence[Argument]] = []
        after: dict[bytes, _Possession] = {}
        confirmed: list[_Possession] = []
        for piece in pieces:
            number = next(self._numbers)
            before = after.get(piece.holder) or self._possessions.get((pool, piece.holder), _NOTHING)
            takes = piece.forget or before is _NOTHING
            after[piece.holder] = _Possession(self._owner(number) if takes else before.owner, number)
            confirmed.append(after[piece.holder])
            who: list[Argument] = [piece.holder, *before, number, self._owner(number), int(piece.forget)]
            what: list[Argument] = [
                _pack(piece.remove),
                _pack(piece.add),
                RETENTION_S * 1000,
                MAX_ADAPTERS,
                *piece.adapters,
            ]
            calls.append((*self._keys(pool), *who, *what))
        answers = await self._writes.run("apply", CALL_BUDGET_S, lambda client: _APPLY.run_all(client, calls))
        for piece, possession, answer in zip(pieces, confirmed, answers, strict=True):
            if answer < 0:
                lost.add(piece.instance)
                continue
            self._possessions[pool, piece.holder] = possession
            self._directories[pool].learn_adapters(piece.adapters)
            if piece.forget:
                lost.discard(piece.instance)

    async def _read(self, name: str, pool: str, of: Callable[[int, Sequence[bytes]], _T]) -> _T:
        directory = self._directories[pool]

        async def call(client: Client) -> _T:
            now_ms, state, adapters = await _READ.run(client, self._keys(pool))
            directory.learn_adapters([name.decode() for name in adapters])
            return of(int(now_ms), state)

        return await self._reads.run(name, CALL_BUDGET_S, call)

    def _keys(self, pool: str) -> tuple[str, ...]:
        """The four keys of a pool. What stands in braces decides the hash slot, so all are in one."""
        prefix = f"{self._namespace}:{SCHEMA}:{{{quote(pool, safe='')}}}"
        return (f"{prefix}:blocks", f"{prefix}:holders", f"{prefix}:adapters", f"{prefix}:state")

    def _owner(self, number: int) -> bytes:
        return self._me + number.to_bytes(8, "big")

    def _sweep_later(self, pool: str) -> None:
        self._written.add(pool)
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    async def _sweep(self) -> None:
        """Writers sweep what they leave behind: one of all routers at a time, in small steps."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            for pool in tuple(self._written):
                with suppress(IndexUnavailable):
                    await self._sweep_round(pool)

    async def _sweep_round(self, pool: str) -> None:
        lease_ms, retention_ms = int(SWEEP_LEASE_S * 1000), RETENTION_S * 1000
        step: list[Argument] = [*self._keys(pool), self._me, lease_ms, retention_ms, SWEEP_FIELDS]
        more = 1
        while more:
            more = await self._writes.run("sweep", CALL_BUDGET_S, lambda client: _SWEEP.run(client, step))
            await asyncio.sleep(SWEEP_PAUSE_S)


def _pieces(changes: Iterable[Change]) -> Iterator[_Piece]:
    for change in changes:
        if not (change.forget or change.remove or change.add or change.adapters):
            continue
        remove, add = list(dict.fromkeys(change.remove)), list(dict.fromkeys(change.add))
        parts = [(remove, add)]
        if len(remove) + len(add) > KEYS_A_CALL:
            parts = [(remove[i : i + KEYS_A_CALL], []) for i in range(0, len(remove), KEYS_A_CALL)]
            parts += [([], add[i : i + KEYS_A_CALL]) for i in range(0, len(add), KEYS_A_CALL)]
        holder = holder_of(change.instance, change.writer)
        yield _Piece(change.instance, holder, change.forget, *parts[0], change.adapters)
        for part in parts[1:]:
            yield _Piece(change.instance, holder, False, *part, ())


def _pack(keys: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(keys)}Q", *keys)


def _named(prefix: bytes, state: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Fields of the state hash that begin with a prefix, without it, and their values."""
    for name, value in zip(state[::2], state[1::2], strict=True):
        if name.startswith(prefix):
            yield name[len(prefix) :], value
