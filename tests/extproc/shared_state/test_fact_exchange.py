"""What engines said reaches every router; what is lost or malformed harms nobody."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from redis.asyncio import Redis

from extproc.base.facts import Fact
from extproc.shared_state import fact_exchange
from extproc.shared_state.fact_exchange import MAX_INSTANCES, MAX_STORED, FactListener, FactPublisher
from tests.support.redis_server import RedisServer

Heard = list[tuple[str, Fact]]


@asynccontextmanager
async def exchanging(url: str, *ears: Heard) -> AsyncIterator[FactPublisher]:
    publisher = FactPublisher.from_url(url)
    listeners = [FactListener.from_url(url, lambda pool, fact, ear=ear: ear.append((pool, fact))) for ear in ears]  # type: ignore[misc]
    tasks = [asyncio.create_task(one.run()) for one in (publisher, *listeners)]
    try:
        yield publisher
    finally:
        assert not any(task.done() for task in tasks), "they end only when they are told to"
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)


async def until(promise: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not promise():
            await asyncio.sleep(0.005)


async def greeted(publisher: FactPublisher, *ears: Heard) -> None:
    """Wait until everybody listens: what was said before is lost, as it may be."""
    while not all(ears):
        publisher.tell("greeting", Fact("engine"))
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)
    for ear in ears:
        ear.clear()


def plain(heard: Heard) -> list[tuple[str, str, bool, list[int], int]]:
    return [(pool, fact.instance, fact.lost, list(fact.stored), fact.span) for pool, fact in heard]


async def test_every_router_hears_what_an_engine_said(redis_of_each_version: RedisServer) -> None:
    """Keys of all 64 bits, in order, of every instance; said twice within a tick is one message."""
    url = f"{redis_of_each_version.url}?namespace={uuid.uuid4().hex}"
    one, other = Heard(), Heard()
    async with exchanging(url, one, other) as publisher:
        await greeted(publisher, one, other)
        publisher.tell("pool", Fact("a", stored=[1, 2**64 - 1], span=3))
        publisher.tell("pool", Fact("a", stored=[7], span=3))
        publisher.tell("other", Fact("b", lost=True))
        await until(lambda: len(one) == len(other) == 2)
    said = [("pool", "a", False, [1, 2**64 - 1, 7], 3), ("other", "b", True, [], 1)]
    assert plain(one) == plain(other) == said


async def test_what_was_lost_ends_what_was_said_before(own_redis: RedisServer) -> None:
    """Within one message too: what was stored before a clear is not stored any more, what comes after it is."""
    heard = Heard()
    async with exchanging(own_redis.url, heard) as publisher:
        await greeted(publisher, heard)
        publisher.tell("pool", Fact("a", stored=[1]))
        publisher.tell("pool", Fact("a", lost=True))
        publisher.tell("pool", Fact("a", stored=[2]))
        await until(lambda: bool(heard))
    assert plain(heard) == [("pool", "a", True, [2], 1)]


async def test_nothing_grows_while_redis_is_away(own_redis: RedisServer) -> None:
    """Facts that cannot be sent are dropped, and what waits is bounded; when Redis is back, new ones come."""
    heard = Heard()
    async with exchanging(own_redis.url, heard) as publisher:
        await greeted(publisher, heard)
        own_redis.stop()
        for number in range(3 * MAX_STORED):
            publisher.tell("pool", Fact("a", stored=[number]))
        for number in range(2 * MAX_INSTANCES):
            publisher.tell("pool", Fact(f"engine {number}"))
        assert len(publisher._waiting) <= MAX_INSTANCES
        assert len(publisher._waiting["pool", "a"].stored) == MAX_STORED
        await until(lambda: not publisher._waiting)
        own_redis.start()
        await greeted(publisher, heard)


async def test_a_strangers_message_is_said_once(own_redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """What no router of ours sent is ignored, with one line in the log."""
    heard = Heard()
    async with exchanging(own_redis.url, heard) as publisher, Redis.from_url(own_redis.url) as stranger:
        await greeted(publisher, heard)
        for message in (b"hello", b"", b"\x91\x95\xa1p\xa1i\xc2\xc4\x031234\x01", b"\x91\x93\x01\x02\x03"):
            await stranger.publish(publisher._channel, message)
        await greeted(publisher, heard)
    assert len([record for record in caplog.records if "no router of ours" in record.message]) == 1


async def test_the_youngest_of_what_is_joined_counts(own_redis: RedisServer) -> None:
    """So that no hint outlives a word that came after it."""
    heard = Heard()
    async with exchanging(own_redis.url, heard) as publisher:
        await greeted(publisher, heard)
        publisher.tell("pool", Fact("a", stored=[1], age_s=4.0))
        publisher.tell("pool", Fact("a", stored=[2], age_s=0.5))
        publisher.tell("pool", Fact("b", stored=[3], age_s=4.0))
        await until(lambda: len(heard) == 2)
    assert [(fact.instance, fact.age_s) for _, fact in heard] == [("a", 0.5), ("b", 4.0)]


async def test_a_connection_that_died_without_a_word_is_replaced(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that swallows packets ends no connection: a listener that hears nothing asks, and connects anew."""
    monkeypatch.setattr(fact_exchange, "SILENCE_S", 0.2)
    swallowing, connections = asyncio.Event(), 0

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if not swallowing.is_set():
                    writer.write(data)
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        redis_reader, redis_writer = await asyncio.open_connection("127.0.0.1", own_redis.port)
        await asyncio.gather(pump(reader, redis_writer), pump(redis_reader, writer))

    between = await asyncio.start_server(forward, "127.0.0.1", 0)
    port = between.sockets[0].getsockname()[1]
    heard = Heard()
    listener = FactListener.from_url(f"redis://127.0.0.1:{port}/0", lambda pool, fact: heard.append((pool, fact)))
    listening = asyncio.create_task(listener.run())
    async with exchanging(own_redis.url) as publisher:
        await greeted(publisher, heard)
        before = connections
        await asyncio.sleep(1.0)
        assert connections == before, "a quiet pool is no dead connection"
        swallowing.set()
        await until(lambda: connections > before)
        swallowing.clear()
        await greeted(publisher, heard)
    listening.cancel()
    with suppress(asyncio.CancelledError):
        await listening
    between.close()
    await asyncio.sleep(0.05)  # lets the forwarders see their connections end
