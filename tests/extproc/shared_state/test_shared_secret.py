"""The secret of an index: one for all, put back where it was lost, replaced only by somebody who never knew it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import pytest

from extproc.base.errors import IndexUnavailable
from extproc.shared_state import shared_secret
from extproc.shared_state.shared_secret import SharedSecret
from tests.support.redis_server import RedisServer

Opener = Callable[[], SharedSecret]


@pytest.fixture
async def open_another(own_redis: RedisServer) -> AsyncIterator[Opener]:
    """One more process that shares an index."""
    url = f"{own_redis.url}?namespace={uuid.uuid4().hex}"
    opened: list[SharedSecret] = []

    def open_() -> SharedSecret:
        opened.append(SharedSecret.from_url(url))
        return opened[-1]

    yield open_
    for one in opened:
        await one.close()


async def test_all_have_the_same(open_another: Opener) -> None:
    """However many start at once: the first leaves his, and nobody is told twice."""
    all_ = [open_another() for _ in range(5)]
    assert await asyncio.gather(*(one.look() for one in all_)) == [True] * 5
    assert len({one.secret for one in all_}) == 1
    assert not any([await one.look() for one in all_])
    assert len(all_[0].secret or b"") == 16


async def test_two_indexes_have_two(open_another: Opener, own_redis: RedisServer) -> None:
    """Namespaces share nothing."""
    one, other = open_another(), SharedSecret.from_url(f"{own_redis.url}?namespace=other")
    await one.look()
    await other.look()
    assert one.secret != other.secret
    await other.close()


async def test_what_a_flush_lost_is_put_back(open_another: Opener, own_redis: RedisServer) -> None:
    """By whoever looks first, so that nothing that followers know need be hashed anew."""
    one, other = open_another(), open_another()
    await one.look()
    await other.look()
    secret = one.secret
    own_redis.send("FLUSHALL")
    assert not await other.look()
    newcomer = open_another()
    await newcomer.look()
    assert newcomer.secret == secret
    assert not await one.look()


async def test_another_secret_is_told(
    open_another: Opener, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A newcomer was faster after a flush: everybody takes his, and hears of it once. Neither is in any log."""
    monkeypatch.setattr(shared_secret, "LOOK_S", 0.02)
    old, told = open_another(), asyncio.Queue[bytes]()
    running = asyncio.create_task(old.run(told.put_nowait))
    first = await asyncio.wait_for(told.get(), 10)
    own_redis.send("SET", old._name, "another, by a newcomer")
    second = await asyncio.wait_for(told.get(), 10)
    assert (second, told.empty()) == (b"another, by a newcomer", True)
    assert len(caplog.messages) == 1
    assert not any(
        secret.hex() in line or str(secret) in line for secret in (first, second) for line in caplog.messages
    )
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_it_stays_while_redis_is_away(open_another: Opener, own_redis: RedisServer) -> None:
    """None before Redis was reached; afterwards what is known, and what Redis lost meanwhile is put back."""
    own_redis.stop()
    one = open_another()
    with pytest.raises(IndexUnavailable):
        await one.look()
    assert (one.secret, await one.peek()) == (None, None)
    own_redis.start()
    await until_known(one)
    secret = one.secret
    own_redis.stop()
    with pytest.raises(IndexUnavailable):
        await one.look()
    own_redis.start()
    await until_known(one)
    assert one.secret == secret


async def until_known(one: SharedSecret) -> None:
    async with asyncio.timeout(20):
        while True:
            with suppress(IndexUnavailable):
                await one.look()
                return
            await asyncio.sleep(0.02)


async def test_a_replica_tells_it(open_another: Opener, own_redis: RedisServer) -> None:
    """Reading needs no write, so a router on a replica finds what the others stored."""
    one = open_another()
    await one.look()
    own_redis.send("REPLICAOF", "127.0.0.1", "1")
    other = open_another()
    await other.look()
    assert other.secret == one.secret


async def test_it_expires_when_nobody_needs_it(open_another: Opener, own_redis: RedisServer) -> None:
    """And is kept as long as somebody does."""
    one = open_another()
    await one.look()
    own_redis.send("EXPIRE", one._name, "100")
    await one._keep(1.0)
    assert 100 < int(own_redis.send("TTL", one._name).strip(b":\r\n")) <= shared_secret.LIFE_S


async def test_looking_leaves_nothing(open_another: Opener, own_redis: RedisServer) -> None:
    """For commands that only ask."""
    assert await open_another().peek() is None
    assert own_redis.send("DBSIZE") == b":0\r\n"
