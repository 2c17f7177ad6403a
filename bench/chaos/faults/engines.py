"""Engines that die, hang, restart, or forget what they had."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

from bench.chaos.faults.fault import Table
from bench.chaos.world import World, send

FAULTS = Table()


@FAULTS("engine-kill", 4.0)
async def kill(world: World) -> AsyncIterator[None]:
    """an engine dies (SIGKILL) and comes back empty"""
    engine = world.any_engine()
    world.note_killed(engine)
    await asyncio.to_thread(engine.kill)
    world.note_killed(engine)
    yield
    await asyncio.to_thread(engine.restart)


@FAULTS("engine-hang")
async def hang(world: World) -> AsyncIterator[None]:
    """an engine hangs (SIGSTOP) and goes on"""
    pid = world.any_engine().pid
    assert pid is not None
    send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        send(pid, signal.SIGCONT)


@FAULTS("engine-restart", 2.0)
async def restart(world: World) -> AsyncIterator[None]:
    """an engine is told to end (SIGTERM), and another starts in its place"""
    engine = world.any_engine()
    world.note_killed(engine)
    await asyncio.to_thread(engine.stop)
    world.note_killed(engine)
    yield
    await asyncio.to_thread(engine.restart)


@FAULTS("cache-clear", 4.0)
async def clear(world: World) -> AsyncIterator[None]:
    """every engine is asked to empty its cache, as often as no request runs there"""
    for engine in world.engines:
        await asyncio.to_thread(engine.reset_cache)
    yield
