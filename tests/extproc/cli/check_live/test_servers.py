"""Who listens at the server's own ports."""

from __future__ import annotations

import grpc
import pytest

from extproc.cli.check_live.findings import Outcome
from extproc.cli.check_live.servers import server
from extproc.config import Server
from extproc.processor.grpc_health import GrpcHealth
from loadgen.stack.processes import free_port


@pytest.mark.parametrize("ready", [True, False])
async def test_one_of_ours(ready: bool) -> None:
    """Whether it is ready is told; that it is not yet is no mistake."""
    ours, health = grpc.aio.server(), GrpcHealth()
    health.add_to(ours)
    await health.set(ready=ready)
    port = ours.add_insecure_port("127.0.0.1:0")
    await ours.start()
    try:
        found = await server(Server("127.0.0.1", port, tls=False))
        secured = await server(Server("127.0.0.1", port, tls=True))
    finally:
        await ours.stop(0)
    assert found.outcome is Outcome.OK
    assert ("not ready" in found.said) is not ready
    assert secured.outcome is Outcome.UNKNOWN


async def test_another_grpc_server() -> None:
    """It knows none of our services."""
    other = grpc.aio.server()
    port = other.add_insecure_port("127.0.0.1:0")
    await other.start()
    try:
        found = await server(Server("127.0.0.1", port, tls=False))
    finally:
        await other.stop(0)
    assert found.outcome is Outcome.FAILED


async def test_nobody() -> None:
    """A port that is free, and a name that leads nowhere."""
    assert (await server(Server("127.0.0.1", free_port(), tls=False))).outcome is Outcome.UNKNOWN
    assert (await server(Server("extproc.invalid", 9002, tls=False))).outcome is Outcome.FAILED


async def test_a_name_that_is_unknown_here() -> None:
    """No port is at fault: the remedy is another place to run this, or another address."""
    found = await server(Server("extproc.invalid", 9002, tls=False))
    assert found.outcome is Outcome.FAILED
    assert "does not resolve" in found.said
    assert "free the port" not in found.remedy
