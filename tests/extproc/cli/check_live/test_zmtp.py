"""Who is there: real ZMQ sockets, and servers that are none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager

import pytest
import zmq

from extproc.cli.check_live import zmtp
from extproc.cli.check_live.network import Unreachable

HOST = "127.0.0.1"


@pytest.fixture
def open_socket() -> Iterator[Callable[[int], zmq.Socket[bytes]]]:
    with zmq.Context() as context, ExitStack() as sockets:
        context.linger = 0
        yield lambda kind: sockets.enter_context(context.socket(kind))


@asynccontextmanager
async def server(
    speak: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """A TCP server that speaks so, and its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await speak(reader, writer)
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, HOST, 0)
    async with listening:
        yield listening.sockets[0].getsockname()[1]


async def reason(port: int) -> str:
    """Why there is no peer."""
    with pytest.raises(Unreachable) as error:
        async with zmtp.peer(HOST, port):
            raise AssertionError("greeted")
    return str(error.value)


@pytest.mark.parametrize("kind", ["PUB", "XPUB", "ROUTER", "SUB", "DEALER", "PUSH"])
async def test_a_peer_tells_what_it_is(open_socket: Callable[[int], zmq.Socket[bytes]], kind: str) -> None:
    """Even one that libzmq would refuse to talk to."""
    port = open_socket(getattr(zmq, kind)).bind_to_random_port(f"tcp://{HOST}")
    async with zmtp.peer(HOST, port) as peer:
        assert peer.kind == kind


async def test_a_router_is_asked_and_answers(open_socket: Callable[[int], zmq.Socket[bytes]]) -> None:
    """It hears the frames that a DEALER sends, and short and long frames come back whole."""
    router = open_socket(zmq.ROUTER)
    port = router.bind_to_random_port(f"tcp://{HOST}")

    def answer() -> list[bytes]:
        identity, *frames = router.recv_multipart()
        router.send_multipart([identity, b"", b"short", b"x" * 70_000])
        return frames

    async with zmtp.peer(HOST, port) as peer:
        heard = asyncio.create_task(asyncio.to_thread(answer))
        assert await peer.ask([b"", b"12345678"]) == [b"", b"short", b"x" * 70_000]
        assert await heard == [b"", b"12345678"]


async def test_security_that_we_do_not_speak_is_named(open_socket: Callable[[int], zmq.Socket[bytes]]) -> None:
    """An engine behind CURVE."""
    socket = open_socket(zmq.PUB)
    _, socket.curve_secretkey = zmq.curve_keypair()
    socket.curve_server = 1
    port = socket.bind_to_random_port(f"tcp://{HOST}")
    assert "CURVE" in await reason(port)


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x32", "speaks TLS"),
        (b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00", "speaks HTTP/2"),
        (b"-ERR unknown command\r\n", "speaks Redis"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "says b'SSH-2.0-Op'"),
        (b"", "says nothing that we understand"),
    ],
)
@pytest.mark.parametrize("patient", [False, True], ids=["at once", "to a line of text"])
async def test_what_is_no_zmq_is_named(said: bytes, named: str, patient: bool) -> None:
    """Whether it answers our greeting, or waits for the end of a line."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await (reader.readuntil(b"\r\n") if patient else reader.readexactly(12))
        writer.write(said)
        await writer.drain()

    async with server(speak) as port:
        assert named in await reason(port)


async def test_who_hangs_up_in_the_middle() -> None:
    """After the signature: the handshake ends, by an error that is told."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(12)
        writer.write(b"\xff" + bytes(8) + b"\x7f\x03")
        await writer.drain()

    async with server(speak) as port:
        with pytest.raises(EOFError):
            async with zmtp.peer(HOST, port):
                pass


async def test_a_frame_without_end_is_refused() -> None:
    """Whoever says that it sends an exabyte is not waited for."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(12)
        writer.write(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(52, b"\0") + b"\x06" + b"\x7f" * 8)
        await writer.drain()

    async with server(speak) as port:
        assert "a frame of" in await reason(port)
