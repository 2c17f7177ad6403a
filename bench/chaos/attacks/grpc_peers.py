"""Whoever reaches the gRPC port: forged replies, streams by the thousand, bodies that never end, garbage."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

METADATA = (("x-smetric-cluster", "engines"), ("x-smetric-policy", "smetric"))
METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
STREAMS = 2_000
UNFINISHED, PIECE = 20, 1 << 20  # bodies at a time, and the bytes of each piece of them
PIECES = 4

Call = Any


def _headers(mode: int = 2, *, end: bool = False, more: Mapping[str, str] | None = None) -> bytes:
    request = pb.ProcessingRequest()
    request.request_headers.end_of_stream = end
    for key, value in {":path": "/v1/chat/completions", ":method": "POST", **(more or {})}.items():
        request.request_headers.headers.headers.add(key=key, raw_value=value.encode())
    request.protocol_config.request_body_mode = mode
    return bytes(request.SerializeToString())


def _body(data: bytes, *, end: bool = True) -> bytes:
    request = pb.ProcessingRequest()
    request.request_body.body = data
    request.request_body.end_of_stream = end
    return bytes(request.SerializeToString())


def _answered(status: str, served: str) -> bytes:
    request = pb.ProcessingRequest()
    request.response_headers.headers.headers.add(key=":status", raw_value=status.encode())
    request.attributes["envoy.filters.http.ext_proc"].fields["upstream.address"].string_value = served
    return bytes(request.SerializeToString())


_CHAT = json.dumps({"messages": [{"role": "user", "content": "hello " * 100}]}).encode()


@contextlib.asynccontextmanager
async def _streams(ports: Sequence[int]) -> AsyncIterator[Callable[[], Call]]:
    """Opens streams, on all ports in turn."""
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) for port in ports]
    methods: Iterator[Any] = itertools.cycle([channel.stream_stream(METHOD) for channel in channels])
    try:
        yield lambda: next(methods)(metadata=METADATA)
    finally:
        for channel in channels:
            await channel.close()


def forged(ports: Sequence[int], engines: Sequence[str]) -> None:
    """Answers that no engine gave: failures of all but one, and responses that are said to be stored somewhere."""
    asyncio.run(_forged(ports, engines))


async def _forged(ports: Sequence[int], engines: Sequence[str]) -> None:
    async with _streams(ports) as stream:
        while True:
            for engine in engines[:-1]:
                call = stream()
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await call.write(_headers(end=True))
                    await call.read()
                    await call.write(_answered("503", engine))
                    await call.read()
                call.cancel()
            await asyncio.sleep(0.1)


def many(ports: Sequence[int]) -> None:
    """Thousands of streams that are opened, asked, and held; some are broken off and opened again."""
    asyncio.run(_many(ports))


async def _many(ports: Sequence[int]) -> None:
    held: list[Call] = []
    async with _streams(ports) as stream:

        async def hold() -> None:
            call = stream()
            with contextlib.suppress(grpc.aio.AioRpcError):
                await call.write(_headers())
                await call.read()
                await call.write(_body(_CHAT))
                await call.read()
            held.append(call)

        while True:
            await asyncio.gather(*(hold() for _ in range(20)))
            for call in held[: max(20, len(held) - STREAMS)] if len(held) > 100 else ():
                call.cancel()
                held.remove(call)
            await asyncio.sleep(0.05)


def unfinished(ports: Sequence[int]) -> None:
    """Bodies of some megabytes without an end, streamed."""
    asyncio.run(_unfinished(ports))


async def _unfinished(ports: Sequence[int]) -> None:
    async with _streams(ports) as stream:
        while True:
            calls = [stream() for _ in range(UNFINISHED)]
            for call in calls:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await call.write(_headers(4))
                    for _ in range(PIECES):
                        await call.write(_body(b"x" * PIECE, end=False))
            await asyncio.sleep(2)
            for call in calls:
                call.cancel()


def confused(ports: Sequence[int], seed: int) -> None:
    """Messages in any order, any number of times, and bytes that are none."""
    asyncio.run(_confused(ports, random.Random(seed)))


async def _confused(ports: Sequence[int], rng: random.Random) -> None:
    known = [
        _headers(),
        _headers(4),
        _headers(end=True),
        _headers(more={"x-gateway-destination-endpoint": "127.0.0.1:1"}),
        _body(_CHAT),
        _body(b"", end=False),
        _answered("200", "127.0.0.1:1"),
        _answered("nonsense", ""),
        b"",
        os.urandom(300),
        b"\xff" * 50,
    ]

    async def one() -> None:
        call = stream()
        with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError):
            async with asyncio.timeout(1):
                for _ in range(rng.randrange(1, 8)):
                    await call.write(rng.choice(known))
                    if rng.random() < 0.5:
                        await call.read()
        call.cancel()

    async with _streams(ports) as stream:
        while True:
            await asyncio.gather(*(one() for _ in range(10)))
            await asyncio.sleep(0.05)


ATTACKS: Mapping[str, Callable[..., None]] = {
    "forged": forged,
    "many": many,
    "unfinished": unfinished,
    "confused": confused,
}
