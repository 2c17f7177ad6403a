"""What engines said reaches every router; what is lost or malformed harms nobody."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from redis.asyncio import Redis

from extproc.base.facts import Fact
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
