"""Hostile clients of Envoy, and hostile peers of the router's gRPC port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from bench.chaos.faults.fault import Table
from bench.chaos.world import World
from loadgen.stack.stack import HOST

FAULTS = Table()


def _peer(name: str, attack: str, about: str, options: Callable[[World], dict[str, Any]], lasts_s: float = 6.0) -> None:
    async def attacked(world: World) -> AsyncIterator[None]:
        async with world.attacked(attack, **options(world)):
            yield

    attacked.__doc__ = about
    FAULTS(name, lasts_s)(attacked)


def _envoy(world: World) -> dict[str, Any]:
    return {"host": HOST, "port": int(world.stack.url.rpartition(":")[2])}


_peer(
    "bodies",
    "bodies",
    "bodies of some megabytes that cost a reader most, two a second",
    lambda world: {"url": world.stack.url, "megabytes": world.megabytes, "seed": world.rng.random()},
    15.0,
)
_peer("slow-clients", "stalls", "clients that stop within their body or send a head byte by byte", _envoy)
_peer(
    "aborts",
    "aborts",
    "twenty clients a second that leave: within their body, before the reply, within it",
    lambda world: {"url": world.stack.url, "seed": world.rng.random()},
)
_peer(
    "connections",
    "connections",
    "two thousand idle connections to all ports of the router",
    lambda world: {"host": HOST, "ports": [*world.grpc_ports, *world.other_ports]},
)
_peer(
    "grpc-forged",
    "forged",
    "forged answers say that all engines but one fail",
    lambda world: {"ports": list(world.grpc_ports), "engines": [engine.address for engine in world.engines]},
)
_peer(
    "grpc-streams",
    "many",
    "thousands of streams that ask for decisions and stay open",
    lambda world: {"ports": list(world.grpc_ports)},
)
_peer(
    "grpc-bodies",
    "unfinished",
    "twenty streamed bodies at a time that never end",
    lambda world: {"ports": list(world.grpc_ports)},
)
_peer(
    "grpc-confused",
    "confused",
    "messages in any order, and bytes that are none",
    lambda world: {"ports": list(world.grpc_ports), "seed": world.rng.random()},
)
