"""The pool and the configuration change: engines leave, ghosts join, files are wrong, SIGHUP asks for a reload."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

import yaml

from bench.chaos.faults.fault import Table
from bench.chaos.world import World, send
from loadgen.stack.processes import free_port

FAULTS = Table()


@FAULTS("eds-leave")
async def leave(world: World) -> AsyncIterator[None]:
    """two engines leave the pool, come back, and two others leave"""
    for _ in range(3):
        endpoints = world.pool.all()
        world.rng.shuffle(endpoints)
        world.pool.write(endpoints[2:])
        await asyncio.sleep(1.5)
        world.pool.restore()
        await asyncio.sleep(0.5)
    yield


@FAULTS("eds-ghost")
async def ghost(world: World) -> AsyncIterator[None]:
    """an endpoint joins at which nobody listens"""
    endpoints = world.pool.all()
    endpoints[0]["endpoint"]["address"]["socket_address"]["port_value"] = free_port()
    world.pool.write([*world.pool.all(), endpoints[0]])
    try:
        yield
    finally:
        world.pool.restore()


@FAULTS("eds-broken", 4.0)
async def broken(world: World) -> AsyncIterator[None]:
    """the EDS file holds half a document, then nothing, then no endpoints that make sense"""
    try:
        for text in ('{"resources": [{"@type": "type.goog', "", '{"resources": [7]}', "\x00\xff: ["):
            world.pool.write_text(text)
            await asyncio.sleep(0.7)
        yield
    finally:
        world.pool.restore()


@FAULTS("reload", 4.0)
async def reload(world: World) -> AsyncIterator[None]:
    """SIGHUP with a right Envoy YAML that has one more pool"""
    root = yaml.safe_load(world.pool.yaml)
    clusters = root["static_resources"]["clusters"]
    spare = dict(next(one for one in clusters if one["name"] == "engines"), name="spare", type="STATIC")
    del spare["eds_cluster_config"]
    endpoint = {"endpoint": world.pool.all()[0]["endpoint"]}
    spare["load_assignment"] = {"cluster_name": "spare", "endpoints": [{"lb_endpoints": [endpoint]}]}
    clusters.append(spare)
    async for _ in _reloaded(world, yaml.dump(root, sort_keys=False)):
        yield


@FAULTS("reload-wrong", 4.0)
async def reload_wrong(world: World) -> AsyncIterator[None]:
    """SIGHUP with half an Envoy YAML"""
    async for _ in _reloaded(world, world.pool.yaml[: len(world.pool.yaml) // 2]):
        yield


async def _reloaded(world: World, text: str) -> AsyncIterator[None]:
    world.stack.envoy_yaml.write_text(text, "utf-8")
    send(world.router, signal.SIGHUP)
    try:
        yield
    finally:
        world.stack.envoy_yaml.write_text(world.pool.yaml, "utf-8")
        send(world.router, signal.SIGHUP)
