"""The wire of ZMQ (ZMTP 3, no security), as far as one must speak it to know who is there.

libzmq says only whether a handshake succeeded. Spoken by hand, a peer tells what kind of socket it is, so that a replay
port where events should be is told from a closed one; and what is no ZMQ at all shows what it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from extproc.cli.check_live.network import Unreachable, connection

_SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f"
_MECHANISM: Final = b"NULL".ljust(20, b"\0")
_VERSION: Final = b"\x03\x00"
_REST: Final = _MECHANISM + bytes(32)  # not a server, filler
_GREETING: Final = len(_SIGNATURE + _VERSION + _REST)  # bytes
_MORE, _LONG, _COMMAND = 1, 2, 4  # flags of a frame
_MOST: Final = 1 << 20  # bytes of a frame: what we ask for is answered in few
_SILENCE_S: Final = 1.0  # of who may wait for a line to end


class Peer:
    """A connection after the greetings; `kind` is the other end's socket type, such as PUB or ROUTER."""

    def __init__(self, kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.kind = kind
        self._reader = reader
        self._writer = writer

    async def ask(self, frames: Sequence[bytes]) -> list[bytes]:
        """Speak as a DEALER: send a message, and take the next one. Raises EOFError and Unreachable."""
        ready = b"\x05READY\x0bSocket-Type" + _sized(b"DEALER") + b"\x08Identity" + _sized(b"")
        self._writer.write(_frame(ready, _COMMAND))
        for number, frame in enumerate(frames, 1):
            self._writer.write(_frame(frame, _MORE if number < len(frames) else 0))
        answer: list[bytes] = []
        more = True
        while more:
            flags, body = await _read_frame(self._reader)
            if not flags & _COMMAND:
                answer.append(body)
                more = bool(flags & _MORE)
        return answer


@asynccontextmanager
async def peer(host: str, port: int) -> AsyncIterator[Peer]:
    """Greet who listens there. Raises OSError, EOFError, and Unreachable for what does not speak ZMQ."""
    async with connection(host, port) as (reader, writer):
        writer.write(_SIGNATURE + _VERSION)  # a peer with security says so only while we have not said that we lack it
        signature = await _first_bytes(reader)
        if not signature:
            raise Unreachable(f"this is no ZMQ: it {_language(await _asked_aloud(host, port))}")
        if signature[:1] != b"\xff" or signature[9:10] != b"\x7f":
            raise Unreachable(f"this is no ZMQ: it {_language(signature)}")
        greeting = signature + await reader.readexactly(_GREETING - len(signature))
        mechanism = greeting[12:32].rstrip(b"\0").decode(errors="replace")
        if mechanism != "NULL":
            raise Unreachable(f"it wants {mechanism} security, which the router does not speak")
        writer.write(_REST)
        _, ready = await _read_frame(reader)
        yield Peer(_kind(ready), reader, writer)


async def _first_bytes(reader: asyncio.StreamReader) -> bytes:
    """As many as a signature has, or fewer; none where the other end is silent, as ZMQ never is."""
    try:
        async with asyncio.timeout(_SILENCE_S):
            return await reader.readexactly(len(_SIGNATURE))
    except (TimeoutError, ConnectionError):
        return b""
    except asyncio.IncompleteReadError as error:
        return error.partial


async def _asked_aloud(host: str, port: int) -> bytes:
    """What is said to a line of text, by who did not understand the greeting."""
    async with connection(host, port) as (reader, writer):
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        return await _first_bytes(reader)


def _language(first: bytes) -> str:
    if not first:
        return "says nothing that we understand"
    if first.startswith(b"HTTP/"):
        return "speaks HTTP"
    if first[:1] == b"\0" and first[3:4] == b"\x04":  # SETTINGS
        return "speaks HTTP/2"
    if first[:1] == b"\x15":
        return "speaks TLS"
    if first[:1] == b"-":
        return "speaks Redis's protocol, it seems"
    return f"says {first[:10]!r}"


def _kind(ready: bytes) -> str:
    """Socket-Type of a READY command."""
    _, found, rest = ready.partition(b"\x0bSocket-Type")
    size = int.from_bytes(rest[:4], "big")
    return rest[4 : 4 + size].decode(errors="replace") if found else "unknown"


def _sized(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


def _frame(body: bytes, flags: int) -> bytes:
    return bytes((flags, len(body))) + body  # all of ours are short


async def _read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    (flags,) = await reader.readexactly(1)
    size = int.from_bytes(await reader.readexactly(8 if flags & _LONG else 1), "big")
    if size > _MOST:
        raise Unreachable(f"it sent a frame of {size} bytes, which no engine does here")
    return flags, await reader.readexactly(size)
