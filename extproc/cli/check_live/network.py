"""Connections within a time limit, and why they fail in few words."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from typing import Final, TypeVar

from extproc.base.dns import look_up

TRY_S: Final = 3.0  # for one answer: an engine's loop may be busy for a second while it compiles or captures graphs

_T = TypeVar("_T")


class Unreachable(Exception):
    """No connection, or none that says anything; the message says why."""


async def attempt(work: Coroutine[None, None, _T], refused: Callable[[str], _T], seconds: float = TRY_S) -> _T:
    """The result of `work`, or `refused(why)` where the network or the time ended it."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except (Unreachable, OSError, TimeoutError, EOFError) as error:
        return refused(why(error, seconds))


def why(error: BaseException, seconds: float = TRY_S) -> str:
    """The cause in few words."""
    if isinstance(error, Unreachable):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"no answer within {seconds:g} s; a firewall, or a process that hangs?"
    inner = error.__cause__ or (None if isinstance(error, OSError) else error.__context__)
    if inner is not None:  # libraries wrap it
        return why(inner, seconds)
    if isinstance(error, socket.gaierror):
        return "its name does not resolve"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, EOFError | ConnectionError):
        return "it closed the connection"
    return str(error.strerror or error) if isinstance(error, OSError) else str(error)


async def addresses(host: str) -> Sequence[str]:
    """The IP addresses of a host. Raises Unreachable where there are none."""
    with suppress(ValueError):
        return [str(ip_address(host))]
    try:
        return list(dict.fromkeys(await look_up(host)))
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"the name {host} does not resolve") from error


@asynccontextmanager
async def connection(host: str, port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A TCP connection. Raises OSError and Unreachable."""
    address, *_ = await addresses(host)
    reader, writer = await asyncio.open_connection(address, port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def host_and_port(address: str) -> tuple[str, int]:
    """Of `host:port` or `[::1]:port`, with or without a scheme."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    return host.strip("[]"), int(port)
