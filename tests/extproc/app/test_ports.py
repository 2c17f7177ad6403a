"""Ports whose last owner may still be there."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from extproc.app import ports
from extproc.app.options import Address
from extproc.base.errors import ConfigError


async def test_a_port_that_is_taken_for_a_moment_is_waited_for() -> None:
    """Who starts beside a process that ends gets its port when that one is gone."""
    with contextlib.ExitStack() as stack:
        taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        waiting = asyncio.create_task(ports.free({"--listen": Address("127.0.0.1", taken.getsockname()[1])}, 60))
        await asyncio.sleep(3 * ports.LOOK_S)
        assert not waiting.done()
    await waiting


async def test_a_port_that_stays_taken_is_told() -> None:
    """With its flag, so that an operator knows which of three it is."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        there = {"--health": Address("127.0.0.1", 0), "--metrics": Address("127.0.0.1", number)}
        with pytest.raises(ConfigError, match=f"--metrics: cannot listen on 127.0.0.1:{number}; is another"):
            await ports.free(there, 0.2)


async def test_connections_that_only_end_are_no_owner() -> None:
    """A server that was killed leaves its side of the connections in TIME_WAIT for a minute."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address) as client:
            served, _ = server.accept()
            served.close()  # who closes first waits
            assert client.recv(1) == b""
    await ports.free({"--listen": Address(*address)}, 0)
