"""The router's own processes die or hang, or it is told to start anew."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

from bench.chaos.faults.fault import Table
from bench.chaos.world import World, send

FAULTS = Table()
WORKER, FOLLOWER = "extproc.app.child serve", "extproc.app.child follow"


@FAULTS("worker-kill", 2.0)
async def worker_kill(world: World) -> AsyncIterator[None]:
    """a router worker dies (SIGKILL); `serve` starts it again"""
    send(world.child_of_router(WORKER), signal.SIGKILL)
    yield


@FAULTS("worker-hang", 4.0)
async def worker_hang(world: World) -> AsyncIterator[None]:
    """a router worker hangs (SIGSTOP) and goes on"""
    pid = world.child_of_router(WORKER)
    send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        send(pid, signal.SIGCONT)


@FAULTS("follower-kill", 2.0)
async def follower_kill(world: World) -> AsyncIterator[None]:
    """the process that follows the events dies (SIGKILL); `serve` starts it again"""
    send(world.child_of_router(FOLLOWER), signal.SIGKILL)
    yield


@FAULTS("follower-hang")
async def follower_hang(world: World) -> AsyncIterator[None]:
    """the process that follows the events hangs (SIGSTOP) and goes on"""
    pid = world.child_of_router(FOLLOWER)
    send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        send(pid, signal.SIGCONT)


@FAULTS("router-kill", 2.0)
async def router_kill(world: World) -> AsyncIterator[None]:
    """`serve` itself dies (SIGKILL), its children end with it, and it is started again"""
    router = world.stack.extproc
    assert router is not None
    send(world.router, signal.SIGKILL)
    await asyncio.to_thread(router.kill)
    yield
    await asyncio.to_thread(router.start)


@FAULTS("router-restart", 2.0)
async def router_restart(world: World) -> AsyncIterator[None]:
    """`serve` is told to end (SIGTERM), drains, and is started again"""
    router = world.stack.extproc
    assert router is not None
    await asyncio.to_thread(router.stop, 60.0)
    yield
    await asyncio.to_thread(router.start)
