"""Why a connection fails, in few words."""

from __future__ import annotations

import asyncio
import socket

import pytest

from extproc.cli.check_live.network import Unreachable, addresses, attempt, connection, host_and_port, why


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("tcp://10.0.0.1:5557", ("10.0.0.1", 5557)),
        ("tcp://[::1]:5557", ("::1", 5557)),
        ("engine-0:8000", ("engine-0", 8000)),
        ("tcp://*:5557", ("*", 5557)),
    ],
)
def test_an_address_is_taken_apart(address: str, parts: tuple[str, int]) -> None:
    """With a scheme and without."""
    assert host_and_port(address) == parts


async def test_what_fails_is_told() -> None:
    """The cause that libraries wrap, not their names for it."""

    async def nobody() -> str:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        async with connection("127.0.0.1", port):
            return "connected"

    async def nowhere() -> str:
        async with connection("engine.invalid", 1):
            return "connected"

    async def never() -> str:
        await asyncio.sleep(60)
        return "connected"

    assert await attempt(nobody(), str) == "nothing listens there"
    assert await attempt(nowhere(), str) == "the name engine.invalid does not resolve"
    assert "no answer within 0.01 s" in await attempt(never(), str, 0.01)
    wrapped = RuntimeError("Error 111 connecting")
    wrapped.__cause__ = ConnectionRefusedError(111, "x")
    assert why(wrapped) == "nothing listens there"
    assert why(ConnectionResetError()) == "it closed the connection"
    assert why(OSError(101, "Network is unreachable")) == "Network is unreachable"


async def test_a_bug_is_not_hidden() -> None:
    """Only the network's errors are findings."""

    async def broken() -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await attempt(broken(), str)


async def test_addresses() -> None:
    """An address is its own; a name has some, or none."""
    assert await addresses("::1") == ["::1"]
    assert "127.0.0.1" in await addresses("localhost")
    for name in ("engine.invalid", "a" * 70):
        with pytest.raises(Unreachable):
            await addresses(name)
