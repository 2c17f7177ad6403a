"""Redis dies, hangs, loses everything, or refuses."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import redis as client

from bench.chaos.faults.fault import Table
from bench.chaos.world import World, send

FAULTS = Table()
OURS = "smetric:*"


def _admin(world: World, *commands: tuple[Any, ...]) -> None:
    with world.redis() as redis:
        for command in commands:
            redis.execute_command(*command)


def _refusal(name: str, about: str, inflict: list[tuple[Any, ...]], undo: list[tuple[Any, ...]]) -> None:
    """A fault that is some commands, and some others that end it."""

    async def refused(world: World) -> AsyncIterator[None]:
        await asyncio.to_thread(_admin, world, *inflict)
        try:
            yield
        finally:
            await asyncio.to_thread(_admin, world, *undo)

    refused.__doc__ = about
    FAULTS(name)(refused)


@FAULTS("redis-hang")
async def hang(world: World) -> AsyncIterator[None]:
    """Redis hangs (SIGSTOP) and goes on"""
    server = world.stack.redis
    assert server is not None
    assert server.pid is not None
    send(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        send(server.pid, signal.SIGCONT)


@FAULTS("redis-kill", 4.0)
async def kill(world: World) -> AsyncIterator[None]:
    """Redis dies (SIGKILL) and comes back empty"""
    server = world.stack.redis
    assert server is not None
    await asyncio.to_thread(server.kill)
    yield
    await asyncio.to_thread(server.restart)


@FAULTS("redis-flush", 2.0)
async def flush(world: World) -> AsyncIterator[None]:
    """FLUSHALL, and every script forgotten"""
    await asyncio.to_thread(_admin, world, ("FLUSHALL",), ("SCRIPT", "FLUSH"))
    yield


@FAULTS("redis-busy", 5.0)
async def busy(world: World) -> AsyncIterator[None]:
    """somebody's script runs for three seconds, and nothing else is answered"""
    script = "local t = redis.call('TIME')[1] + 4 while tonumber(redis.call('TIME')[1]) < t do end"

    def run() -> None:
        with suppress(client.RedisError), world.redis() as redis:
            redis.execute_command("EVAL", script, 0)

    threading.Thread(target=run, daemon=True).start()
    yield


@FAULTS("redis-pause", 5.0)
async def pause(world: World) -> AsyncIterator[None]:
    """CLIENT PAUSE for three seconds, as a failover does"""
    await asyncio.to_thread(_admin, world, ("CLIENT", "PAUSE", 3_000, "ALL"))
    yield


@FAULTS("redis-disconnects", 5.0)
async def disconnects(world: World) -> AsyncIterator[None]:
    """all connections are cut, ten times"""
    for _ in range(10):
        await asyncio.to_thread(_admin, world, ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"))
        await asyncio.sleep(0.2)
    yield


@FAULTS("redis-wrong-types")
async def wrong_types(world: World) -> AsyncIterator[None]:
    """keys of ours hold what others put there"""
    changed = await asyncio.to_thread(_rewrite, world, lambda redis, key: redis.set(key, "another application's"))
    try:
        yield
    finally:
        await asyncio.to_thread(_delete, world, changed)


@FAULTS("redis-garbage")
async def garbage(world: World) -> AsyncIterator[None]:
    """fields by chance in our hashes, and garbage in every channel"""

    def spoil(redis: Any, key: bytes) -> None:
        with suppress(client.ResponseError):  # of another type
            redis.hset(key, os.urandom(8), os.urandom(7))
            redis.hset(key, "x", b"\xff")

    await asyncio.to_thread(_rewrite, world, spoil)
    await asyncio.to_thread(_say_garbage, world)
    yield


def _rewrite(world: World, change: Callable[[Any, bytes], Any]) -> list[bytes]:
    with world.redis() as redis:
        keys: list[bytes] = sorted(redis.scan_iter(OURS))
        for key in keys:
            change(redis, key)
        return keys


def _delete(world: World, keys: list[bytes]) -> None:
    with world.redis() as redis:
        redis.delete(*keys)


def _say_garbage(world: World) -> None:
    with world.redis() as redis:
        for channel in redis.pubsub_channels(OURS):
            for said in (b"", b"\xc1", os.urandom(2_000), b"\x93\xc0\xc0\xc0", b"\x80", b"\x91" * 5_000):
                redis.publish(channel, said)


_refusal(
    "redis-oom",
    "Redis is out of memory and evicts nothing: writes are refused",
    [("CONFIG", "SET", "maxmemory-policy", "noeviction"), ("CONFIG", "SET", "maxmemory", 1)],
    [("CONFIG", "SET", "maxmemory", 0)],
)
_refusal(
    "redis-evicts",
    "Redis is out of memory and evicts keys, ours too",
    [("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"), ("CONFIG", "SET", "maxmemory", 1 << 20)],
    [("CONFIG", "SET", "maxmemory", 0), ("CONFIG", "SET", "maxmemory-policy", "noeviction")],
)
_refusal(
    "redis-read-only",
    "Redis is made a replica of nobody: writes are refused",
    [("REPLICAOF", "127.0.0.1", 1)],
    [("REPLICAOF", "NO", "ONE")],
)
_refusal(
    "redis-stale",
    "a replica that has lost its master refuses even reads",
    [("CONFIG", "SET", "replica-serve-stale-data", "no"), ("REPLICAOF", "127.0.0.1", 1)],
    [("REPLICAOF", "NO", "ONE"), ("CONFIG", "SET", "replica-serve-stale-data", "yes")],
)
_refusal(
    "redis-no-scripts",
    "an ACL takes the right to run scripts",
    [("ACL", "SETUSER", "default", "-@scripting")],
    [("ACL", "SETUSER", "default", "+@all")],
)
_refusal(
    "redis-no-writes",
    "an ACL takes the right to write",
    [("ACL", "SETUSER", "default", "-@write")],
    [("ACL", "SETUSER", "default", "+@all")],
)
_refusal(
    "redis-no-keys",
    "an ACL takes our keys and channels",
    [("ACL", "SETUSER", "default", "resetkeys", "resetchannels", "~other:*")],
    [("ACL", "SETUSER", "default", "resetkeys", "resetchannels", "~*", "&*")],
)
_refusal(
    "redis-password",
    "the password changes, and every connection is cut",
    [
        ("ACL", "SETUSER", "default", "resetpass", ">another"),
        ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"),
    ],
    [("ACL", "SETUSER", "default", "resetpass", "nopass")],
)
