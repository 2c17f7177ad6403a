"""Several routers on one Redis: each router's loads count for all."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from extproc.routing.pools.loads import Loads
from extproc.shared_state import load_exchange
from extproc.shared_state.load_exchange import LoadExchange
from tests.support.redis_server import RedisServer

NAMES = [f"10.0.0.{i}:8000" for i in range(2)]


@asynccontextmanager
async def exchanging(url: str, replica: str, loads: Loads) -> AsyncIterator[LoadExchange]:
    exchange = LoadExchange.from_url(url, replica, loads, ["pool", "other"])
    task = asyncio.create_task(exchange.run())
    try:
        yield exchange
    finally:
        assert not task.done(), "the exchange ends only when it is told to"
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(promise: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not promise():
            await asyncio.sleep(0.005)


async def test_loads_count_for_all(redis_of_each_version: RedisServer) -> None:
    """What one router has in flight the others see soon, and see end; each pool for itself."""
    url = f"{redis_of_each_version.url}?namespace={uuid.uuid4().hex}"
    loads = {name: Loads() for name in "abc"}
    async with (
        exchanging(url, "a", loads["a"]) as exchange,
        exchanging(url, "b", loads["b"]),
        exchanging(url, "c", loads["c"]),
    ):
        await until(lambda: exchange.peers == {"b", "c"})
        tickets = [loads[name].start("pool", NAMES[0], 100) for name in "aab"]
        loads["c"].start("other", NAMES[0], 7)
        for each in loads.values():
            await until(lambda each=each: each.view("pool", NAMES[:2])[0] == [3, 0])  # type: ignore[misc]
            await until(lambda each=each: each.view("pool", NAMES[:2])[1] == [300, 0])  # type: ignore[misc]
            await until(lambda each=each: each.view("other", NAMES[:2])[0] == [1, 0])  # type: ignore[misc]
        tickets[0].move(NAMES[1])
        await until(lambda: loads["c"].view("pool", NAMES[:2])[0] == [2, 1])
        await until(lambda: loads["c"].view("pool", NAMES[:2])[1] == [200, 100])
        for ticket in tickets:
            ticket.release()
        await until(lambda: loads["c"].view("pool", NAMES[:2])[0] == [0, 0])


async def test_a_dead_router_stops_counting(own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests of a router that fell silent no longer weigh on its instances."""
    monkeypatch.setattr(load_exchange, "SILENCE_S", 1.5)
    mine, theirs = Loads(), Loads()
    async with exchanging(own_redis.url, "mine", mine) as exchange:
        async with exchanging(own_redis.url, "theirs", theirs):
            theirs.start("pool", NAMES[0], 5)
            await until(lambda: mine.view("pool", NAMES[:1])[0] == [1])
        await until(lambda: mine.view("pool", NAMES[:1])[0] == [0])
        assert exchange.peers == frozenset()


@pytest.mark.parametrize("how", ["killed", "hanging"])
async def test_loads_while_redis_is_away(own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Peers cannot be heard: they stop counting; they count again when Redis is back. Nothing raises."""
    monkeypatch.setattr(load_exchange, "SILENCE_S", 1.5)
    mine, theirs = Loads(), Loads()
    async with exchanging(own_redis.url, "mine", mine), exchanging(own_redis.url, "theirs", theirs):
        theirs.start("pool", NAMES[0], 5)
        await until(lambda: mine.view("pool", NAMES[:1])[0] == [1])
        if how == "killed":
            own_redis.stop()
        else:
            own_redis.pause()
        await until(lambda: mine.view("pool", NAMES[:1])[0] == [0])
        theirs.start("pool", NAMES[0], 5)
        if how == "killed":
            own_redis.start()
        else:
            own_redis.resume()
        await until(lambda: mine.view("pool", NAMES[:1])[0] == [2])


async def test_lost_messages_are_repaired(own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish/subscribe may lose messages: the next complete one puts all counts right."""
    mine, theirs = Loads(), Loads()
    async with exchanging(own_redis.url, "mine", mine) as exchange, exchanging(own_redis.url, "theirs", theirs) as peer:
        await until(lambda: exchange.peers == {"theirs"} and peer.peers == {"mine"})
        hear = exchange._hear
        lost: list[bytes] = []

        def deaf(data: bytes, now: float) -> None:
            whole = load_exchange.msgspec.msgpack.decode(data)[1]
            hear(data, now) if whole else lost.append(data)

        monkeypatch.setattr(exchange, "_hear", deaf)
        theirs.start("pool", NAMES[1], 5)
        while not lost:  # what changes as a complete message is due goes with that one
            ticket = theirs.start("pool", NAMES[0], 5)
            await asyncio.sleep(0.02)
            ticket.release()
            await asyncio.sleep(0.02)
        await until(lambda: mine.view("pool", NAMES[:2])[0] == [0, 1])


async def test_newcomers_hear_everything_at_once(own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A router that joins need not wait for the next complete message of the others."""
    monkeypatch.setattr(load_exchange, "WHOLE_S", 300.0)
    monkeypatch.setattr(load_exchange, "SILENCE_S", 600.0)
    mine, theirs = Loads(), Loads()
    theirs.start("pool", NAMES[0], 5)
    async with exchanging(own_redis.url, "theirs", theirs) as exchange:
        await until(lambda: published(own_redis) == 1)
        async with exchanging(own_redis.url, "mine", mine):
            await until(lambda: mine.view("pool", NAMES[:1])[0] == [1])
            assert exchange.peers == {"mine"}


async def test_a_router_alone_says_little(own_redis: RedisServer) -> None:
    """While nobody listens, changes of the loads are not published, only that this router lives."""
    mine = Loads()
    started = time.monotonic()
    async with exchanging(own_redis.url, "mine", mine):
        for _ in range(200):
            mine.start("pool", NAMES[0], 1)
            await asyncio.sleep(0.01)
    assert 1 <= published(own_redis) <= 2 + (time.monotonic() - started) / load_exchange.WHOLE_S


def published(server: RedisServer) -> int:
    stats = server.send("INFO", "commandstats").decode()
    return int(stats.partition("cmdstat_publish:calls=")[2].partition(",")[0] or 0)


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\xff", b"text", load_exchange.msgspec.msgpack.encode(("x", True, {"pool": {"a": (-1, 0)}}))],
)
async def test_strange_messages_are_ignored(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    """What no router sent is reported once and changes nothing."""
    mine, theirs = Loads(), Loads()
    async with exchanging(own_redis.url, "mine", mine) as exchange, exchanging(own_redis.url, "theirs", theirs):
        await until(lambda: exchange.peers == {"theirs"})
        for _ in range(20):
            own_redis.send("PUBLISH", exchange._channel, garbage)
        theirs.start("pool", NAMES[0], 5)
        await until(lambda: mine.view("pool", NAMES[:1])[0] == [1])
    assert len([record for record in caplog.records if "no router of ours" in record.message]) == 2, "one each"


async def test_unknown_pools_and_floods_of_peers_are_not_kept(own_redis: RedisServer) -> None:
    """What peers say of pools that we do not have is not kept, nor are ever more peers."""
    kept: list[tuple[str, str]] = []

    class Recorder(Loads):
        def merge(self, replica: str, pool: str, counts: Any) -> None:
            kept.append((replica, pool))

    exchange = LoadExchange.from_url(own_redis.url, "mine", Recorder(), ["pool"])
    for i in range(2 * load_exchange.MAX_PEERS):
        message = (f"peer-{i}", False, {"pool": {"a": (1, 1)}, "unknown": {"a": (1, 1)}})
        exchange._hear(load_exchange.msgspec.msgpack.encode(message), 0.0)
    assert len(exchange.peers) == load_exchange.MAX_PEERS
    assert {pool for _, pool in kept} == {"pool"}
    assert len(kept) == load_exchange.MAX_PEERS
