"""Redis away, hanging, restarted or overrun: calls fail with one error, decisions stay cheap, all heals."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import uvloop

from extproc.base.errors import IndexLost, IndexUnavailable
from extproc.index import Change
from extproc.index import redis as redis_index
from extproc.index.redis import SLOTS, RedisIndex
from tests.support.redis_server import RedisServer
from tests.support.shared_index import ADD, CHAIN, opened, until_it_works


async def until_away(index: RedisIndex) -> None:
    async with asyncio.timeout(20):
        while index._reads._there:
            with pytest.raises(IndexUnavailable):
                await index.match("pool", CHAIN)


def commands_sent(index: RedisIndex, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands that this client sends from here on."""
    sent: list[str] = []
    send = index._client.execute_command

    async def counted(*words: Any, **options: Any) -> Any:
        sent.append(words[0])
        return await send(*words, **options)

    monkeypatch.setattr(index._client, "execute_command", counted)
    return sent


async def test_a_hanging_redis_is_left_alone_until_it_answers(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis stops answering: calls fail, then are not even sent; when it answers again, everything works as before."""
    monkeypatch.setattr(redis_index, "SWEEP_EVERY_S", 3600.0)  # only what we call is to be sent
    async with opened(own_redis.url) as index:
        await index.apply(ADD)
        await until_it_works(lambda: index.match("pool", CHAIN))
        own_redis.pause()
        await until_away(index)
        sent = commands_sent(index, monkeypatch)
        for _ in range(100):
            with pytest.raises(IndexUnavailable):
                await index.match("pool", CHAIN)
        assert "EVALSHA" not in sent
        own_redis.resume()
        assert await until_it_works(lambda: index.match("pool", CHAIN)) == {"a": 200}


async def test_writes_to_a_hanging_redis_are_not_mixed_up(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent to a hanging Redis and given up is read by it later, after or before newer writes: the result is
    as if only the newer ones had been sent."""
    monkeypatch.setattr(redis_index, "CALL_BUDGET_S", 0.5)
    async with opened(own_redis.url) as index:
        await index.apply(ADD)
        own_redis.pause()
        for _ in range(2):
            with pytest.raises(IndexUnavailable):
                await index.apply([Change("pool", "a", remove=CHAIN[:99:-1])])
        own_redis.resume()
        await until_it_works(lambda: index.apply([Change("pool", "a", remove=CHAIN[:49:-1])]))
        await until_it_works(lambda: index.apply([Change("pool", "a", add=CHAIN[50:150])]))
        for _ in range(5):
            assert await until_it_works(lambda: index.match("pool", CHAIN)) == {"a": 150}
            await asyncio.sleep(0.01)


async def test_a_restarted_redis_is_found_again(own_redis: RedisServer) -> None:
    """Redis dies and comes back empty: calls fail, then the writer hears of its loss, then everything works."""
    async with opened(own_redis.url) as index:
        await index.apply(ADD)
        await until_it_works(lambda: index.match("pool", CHAIN))
        own_redis.stop()
        await until_away(index)
        own_redis.start()
        with pytest.raises(IndexLost):
            await until_it_works(lambda: index.apply([Change("pool", "a", add=[1])]))
        await until_it_works(lambda: index.apply(ADD))
        assert await until_it_works(lambda: index.match("pool", CHAIN)) == {"a": 200}


async def test_a_router_may_start_before_redis() -> None:
    """Nothing listens yet: calls fail; once Redis is there, they work without a restart."""
    server = RedisServer()
    async with opened(server.url) as index:
        for _ in range(3):
            with pytest.raises(IndexUnavailable):
                await index.match("pool", CHAIN)
        with pytest.raises(IndexUnavailable):
            await index.apply(ADD)
        try:
            server.start()
            await until_it_works(lambda: index.apply(ADD))
            assert await until_it_works(lambda: index.match("pool", CHAIN)) == {"a": 200}
        finally:
            server.stop()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_busy_process_is_not_held_against_redis(
    own_redis: RedisServer, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """The answer came in time but this process was busy beyond the budget: the match still gets it."""

    async def play() -> None:
        async with opened(own_redis.url) as index:
            await index.apply(ADD)
            await until_it_works(lambda: index.match("pool", CHAIN))
            for _ in range(5):
                match = asyncio.create_task(index.match("pool", CHAIN))
                await asyncio.sleep(0)  # it is sent
                work.send(b"x")
                assert await match == {"a": 200}

    def busy() -> None:
        for_us.recv(1)
        time.sleep(0.1)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        work, for_us = socket.socketpair()
        runner.get_loop().add_reader(for_us, busy)
        runner.run(play())
        runner.get_loop().remove_reader(for_us)
    work.close()
    for_us.close()


async def test_cancelled_calls_leave_nothing_behind(own_redis: RedisServer) -> None:
    """A call may be cancelled at any of its awaits: the next ones work, and connections stay bounded."""
    async with opened(f"{own_redis.url}?budget_ms=5000") as index:
        await index.apply(ADD)
        for steps in range(40):
            for call in (index.match("pool", CHAIN), index.apply([Change("pool", "a", add=CHAIN)])):
                task = asyncio.create_task(call)
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        assert await index.match("pool", CHAIN) == {"a": 200}
        connections = await index._client.execute_command("CLIENT", "LIST")
        assert len(connections.splitlines()) <= 2 * SLOTS


async def test_connections_are_bounded(own_redis: RedisServer) -> None:
    """However many decisions wait at once, a router keeps its few connections."""
    async with opened(f"{own_redis.url}?budget_ms=10000") as index:
        await index.apply(ADD)
        found = await asyncio.gather(*(index.match("pool", CHAIN) for _ in range(300)))
        assert found == [{"a": 200}] * 300
        connections = await index._client.execute_command("CLIENT", "LIST")
        assert len(connections.splitlines()) <= 2 * SLOTS


async def test_closing_while_redis_is_away(own_redis: RedisServer) -> None:
    """An index closes without an error whatever state Redis is in."""
    async with opened(own_redis.url) as index:
        await index.apply(ADD)
        await until_it_works(lambda: index.match("pool", CHAIN))
        own_redis.pause()
        await until_away(index)
    own_redis.stop()


async def test_an_outage_is_told_once(own_redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """However many links of a process find Redis away, one warning names host, port and cause, one says it is back."""
    async with opened(own_redis.url) as index, opened(own_redis.url) as other:
        own_redis.stop()
        for one in (index, other):
            for call in (lambda one=one: one.match("pool", CHAIN), lambda one=one: one.apply(ADD)):
                with pytest.raises(IndexUnavailable):
                    await call()
        await until_away(index)
        own_redis.start()
        for one in (index, other):
            await until_it_works(lambda one=one: one.match("pool", CHAIN))
            with suppress(IndexLost):
                await until_it_works(lambda one=one: one.apply(ADD))
    where = f"Redis at 127.0.0.1:{own_redis.port}"
    assert [record.getMessage() for record in caplog.records] == [
        f"{where} is away (it refuses connections); deciding by load until it is back",
        f"{where} is back",
    ]
