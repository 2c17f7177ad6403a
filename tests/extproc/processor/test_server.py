"""The gRPC shell over real gRPC: a client that speaks as Envoy does, and hangs up when it likes."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections.abc import AsyncIterator, Sequence

import grpc
import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest

from extproc.base import metrics
from extproc.base.headers import TOKEN
from extproc.processor import wire
from extproc.processor.messages import Decide, RequestBody
from extproc.routing.route_settings import RouteSettings
from tests.support.ext_proc_client import BODY, Served, answered, ask, body, headers, message, until_idle


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with Served().run() as running:
        yield running


async def test_a_message_out_of_order_ends_the_stream_well(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """Envoy goes on without us: the stream ends with OK, the log and a counter say so."""
    before = metrics.EXCEPTIONS.labels("exchange")._value.get()
    stream = served.stream()
    await stream.write(message(request_trailers={}))
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() is grpc.StatusCode.OK
    assert metrics.EXCEPTIONS.labels("exchange")._value.get() == before + 1
    assert "out of order" in caplog.text


@pytest.mark.parametrize("noise", [b"\xff" * 100, b"", b"\x0a\xff\xff\xff\xff\xff"])
async def test_noise_is_no_bug_and_is_told_of_once(
    served: Served, caplog: pytest.LogCaptureFixture, noise: bytes
) -> None:
    """Whoever reaches the port may send anything, a thousand times: each ends its own stream, none logs a traceback."""
    before = metrics.EXCEPTIONS.labels("stream")._value.get()
    call = served.channel.stream_stream(f"/{wire.SERVICE}/{wire.METHOD}")
    for _ in range(3):
        stream = call()
        await stream.write(noise)
        assert await stream.read() is grpc.aio.EOF
    assert metrics.EXCEPTIONS.labels("stream")._value.get() == before
    assert caplog.text.count("out of order") == 1
    assert "Traceback" not in caplog.text


async def test_a_bug_ends_the_stream_well(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a handler would vanish in grpc.aio: it is logged and counted, and the request goes on."""

    def broken(_: object) -> RouteSettings:
        raise ZeroDivisionError

    served.services.route = broken
    stream = served.stream()
    await stream.write(headers(end=True))
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() is grpc.StatusCode.OK
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(("size", "reason"), [(5 << 20, "first_turn"), (64 << 20, "body_too_large")])
async def test_large_bodies_pass(served: Served, size: int, reason: str) -> None:
    """gRPC's own limit is 4 MiB; ours is beyond the 64 MiB that the shipped Envoy configuration lets through. What is
    longer than the route lets us read is routed by load."""
    data = json.dumps({"messages": [{"role": "user", "content": "x" * size}]}).encode()
    _, decided = await ask(served.stream(), headers(), body(data))
    assert decided["dynamic_metadata"]["smetric"]["reason"] == reason


async def abort(served: Served, steps: Sequence[ProcessingRequest], *, wait: bool) -> None:
    """Send some messages and hang up, before or after the last answer."""
    stream = served.stream()
    for number, step in enumerate(steps, 1):
        await stream.write(step)
        if wait or number < len(steps):
            await stream.read()
    stream.cancel()


@pytest.mark.timeout(300)
async def test_ten_thousand_aborts_leave_no_load(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """A client may hang up between any two messages: every load comes back, and nobody is woken for it."""
    steps = (headers(), body(BODY), answered())
    cases = [(steps[:count], wait) for count in (1, 2, 3) for wait in (True, False)]
    limit = asyncio.Semaphore(100)

    async def one(number: int) -> None:
        async with limit:
            chosen, wait = cases[number % len(cases)]
            await abort(served, chosen, wait=wait)

    with caplog.at_level(logging.WARNING):
        async with asyncio.TaskGroup() as group:
            for number in range(10_000):
                group.create_task(one(number))
        await until_idle(served)
    assert len(served.routed) > 5_000
    assert not caplog.records


async def forged(served: Served, count: int, *metadata: tuple[str, str]) -> list[grpc.StatusCode]:
    """Claims that the first instance failed, as only Envoy may make them."""
    codes = []
    for _ in range(count):
        stream = served.stream(*metadata)
        try:
            await ask(stream, headers(), body(BODY), answered(served.pool.instances[0].address, 503))
            codes.append(grpc.StatusCode.OK)
        except grpc.aio.AioRpcError as refusal:
            codes.append(refusal.code())
        stream.cancel()
    return codes


@pytest.mark.parametrize("metadata", [(), ((TOKEN, "wrong"),), (("x-smetric-cluster", "pool"), (TOKEN, ""))])
async def test_a_stranger_without_the_token_changes_nothing(metadata: tuple[tuple[str, str], ...]) -> None:
    """No stream of it is heard: no load, no decision, and no instance is ejected for what it claims."""
    async with Served(tokens=["secret"]).run() as served:
        refused = await forged(served, 6, *metadata)
        # gRPC's own client may notice the end of the stream before it reads why.
        assert set(refused) <= {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INTERNAL}
        assert (served.routed, served.processor.streams, served.loads.snapshot("pool")) == ([], 0, {})
        assert served.pool.candidates(asyncio.get_running_loop().time()) == served.pool.instances


async def test_with_the_token_the_same_claims_count() -> None:
    """It is no setting of the route either: none is reported as unknown."""
    async with Served(tokens=["secret", "next"]).run() as served:
        for token in ("secret", "next"):
            assert await forged(served, 2, (TOKEN, token)) == [grpc.StatusCode.OK] * 2
        assert len(served.routed) == 4


async def test_no_body_outlives_its_decision(served: Served) -> None:
    """A reply takes minutes, and thousands of them at a time: neither Envoy's message nor the question is kept."""
    stream = served.stream()
    await ask(stream, headers(), body(BODY))
    sent, asked = ([one for one in gc.get_objects() if isinstance(one, kind)] for kind in (RequestBody, Decide))
    assert BODY not in [one.data for one in sent]
    assert BODY not in [one.body for one in asked]
    stream.cancel()
