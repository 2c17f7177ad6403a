"""The gRPC shell over real gRPC: a client that speaks as Envoy does, and hangs up when it likes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from google.protobuf import json_format
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import generate_latest

from extproc.base import metrics
from extproc.base.model import Instance
from extproc.index.memory import MemoryIndex
from extproc.processor import server
from extproc.processor.prefiller import Prefiller
from extproc.processor.server import OPTIONS, READINESS, GrpcHealth, Processor
from extproc.prompts.renderer import PlainRenderer
from extproc.routing.pools.loads import Loads
from extproc.routing.pools.pool import Pool
from extproc.routing.route import RouteSettings
from extproc.routing.router import Router

BODY = json.dumps({"messages": [{"role": "user", "content": "hello " * 200}]}).encode()


class Served:
    """A running server and a channel to it."""

    def __init__(self, instances: int = 2) -> None:
        self.loads = Loads()
        addresses = [Instance(f"10.0.0.{number}:8000") for number in range(instances)]
        self.pool = Pool("pool", PlainRenderer(), instances=addresses)
        self.routed: list[str] = []
        self.processor = Processor(
            Router(MemoryIndex(), self.loads),
            {"pool": self.pool},
            lambda metadata: RouteSettings(dict(metadata).get("x-smetric-cluster", "pool")),
            lambda _, routed: self.routed.append(routed.choice.instance.address),
            Prefiller(),
        )
        self.channel: grpc.aio.Channel

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Served]:
        server = grpc.aio.server(options=OPTIONS)
        server.add_generic_rpc_handlers((self.processor.handler(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as self.channel:
            yield self
        await server.stop(0)

    def stream(self, *metadata: tuple[str, str]) -> Any:
        method = self.channel.stream_stream(
            "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
            request_serializer=ProcessingRequest.SerializeToString,
            response_deserializer=ProcessingResponse.FromString,
        )
        return method(metadata=metadata)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with Served().run() as running:
        yield running


def message(**fields: Any) -> ProcessingRequest:
    parsed: ProcessingRequest = json_format.ParseDict(fields, ProcessingRequest())
    return parsed


def headers(path: str = "/v1/chat/completions", *, end: bool = False) -> ProcessingRequest:
    pairs = [{"key": ":path", "value": path}, {"key": ":method", "value": "POST"}]
    return message(
        request_headers={"headers": {"headers": pairs}, "end_of_stream": end},
        protocol_config={"request_body_mode": "BUFFERED"},
    )


def body(data: bytes) -> ProcessingRequest:
    request = ProcessingRequest()
    request.request_body.body = data
    request.request_body.end_of_stream = True
    return request


def answered(served_by: str | None = None, status: int = 200) -> ProcessingRequest:
    fields: dict[str, Any] = {"response_headers": {"headers": {"headers": [{"key": ":status", "value": f"{status}"}]}}}
    if served_by:
        fields["attributes"] = {"envoy.filters.http.ext_proc": {"upstream.address": served_by}}
    return message(**fields)


async def ask(stream: Any, *requests: ProcessingRequest) -> list[dict[str, Any]]:
    """Send messages one by one, each after the answer to the one before."""
    answers = []
    for request in requests:
        await stream.write(request)
        answer = await stream.read()
        answers.append(json_format.MessageToDict(answer, preserving_proto_field_name=True))
    return answers


async def until_idle(served: Served) -> None:
    """Wait until no stream is open and no load is held."""
    async with asyncio.timeout(30):
        while served.processor.streams or served.loads.snapshot("pool"):
            await asyncio.sleep(0.01)


async def test_one_exchange(served: Served) -> None:
    """The destination comes with the body's answer; load and bytes to prefill are held until the stream ends."""
    stream = served.stream()
    _, decided = await ask(stream, headers(), body(BODY))
    metadata = decided["dynamic_metadata"]
    assert metadata["envoy.lb"]["x-gateway-destination-endpoint"] == "10.0.0.0:8000,10.0.0.1:8000"
    explained = metadata["smetric"]
    assert (explained["instance"], explained["reason"], explained["turn"]) == ("10.0.0.0:8000", "first_turn", 0)
    assert {"policy", "hit_bytes", "best_hit_bytes", "history_bytes", "prompt_bytes"} <= explained.keys()
    assert {"load", "mean_load", "decision_ms"} <= explained.keys()
    assert served.loads.view("pool", ["10.0.0.0:8000"]) == ([1], [int(explained["prompt_bytes"])])
    await ask(stream, answered())  # an engine that streams sends its headers before it prefills
    assert served.loads.view("pool", ["10.0.0.0:8000"]) == ([1], [int(explained["prompt_bytes"])])
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF
    assert served.loads.snapshot("pool") == {}
    assert served.routed == ["10.0.0.0:8000"]


async def test_an_instance_that_envoy_could_not_reach(served: Served) -> None:
    """The load moves to who answered, and the next decision avoids who did not."""
    stream = served.stream()
    _, decided, _ = await ask(stream, headers(), body(BODY), answered(served_by="10.0.0.1:8000"))
    prompt = int(decided["dynamic_metadata"]["smetric"]["prompt_bytes"])
    assert served.loads.snapshot("pool") == {"10.0.0.1:8000": (1, prompt)}
    await ask(served.stream(), headers(), body(BODY))
    assert served.routed == ["10.0.0.0:8000", "10.0.0.1:8000"]
    stream.cancel()


@pytest.mark.parametrize("names_host", [True, False])
@pytest.mark.parametrize(
    ("statuses", "left_alone"),
    [
        ([503, 503], True),
        ([500, 504], True),
        ([503], False),
        ([503, 200, 503], False),
        ([501, 501], False),
        ([400, 400], False),
    ],
)
async def test_an_instance_that_answers_with_errors(
    served: Served, statuses: Sequence[int], *, left_alone: bool, names_host: bool
) -> None:
    """Two errors of a server in a row and the instance is left alone, whether or not Envoy says who answered."""
    first, second = served.pool.instances
    served.pool.instances = [first]
    for status in statuses:
        await ask(served.stream(), headers(), body(BODY), answered(first.address if names_host else None, status))
    served.pool.instances = [first, second]
    candidates = served.pool.candidates(asyncio.get_running_loop().time())
    assert candidates == ([second] if left_alone else [first, second])


async def test_a_stream_lets_go_of_the_body(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply takes minutes; what a stream holds meanwhile is a choice and a load, not the request."""
    made: list[Any] = []
    new = server._Stream
    monkeypatch.setattr(server, "_Stream", lambda *arguments: made.append(new(*arguments)) or made[-1])
    stream = served.stream()
    await ask(stream, headers(), body(BODY), answered())
    (held,) = made
    assert held.routed.choice.prompt > 0
    assert (held.ask.body, held.exchange._body) == (None, [])
    assert not held.routed.query.chain
    assert not held.routed.held
    stream.cancel()


async def test_an_unknown_pool_is_left_to_envoy(served: Served) -> None:
    """No destination is named, a client's own is removed, and the reason is there to see."""
    (decided,) = await ask(served.stream(("x-smetric-cluster", "elsewhere")), headers(end=True))
    mutation = decided["request_headers"]["response"]["header_mutation"]
    removed = ["x-gateway-destination-endpoint", "x-data-parallel-rank", "x-prefiller-host-port"]
    assert mutation == {"remove_headers": removed}
    assert decided["dynamic_metadata"] == {"smetric": {"reason": "no_pool"}}


async def test_an_empty_pool_is_answered_with_503() -> None:
    """The one request that we refuse, in OpenAI's form."""
    async with Served(instances=0).run() as served:
        _, refused = await ask(served.stream(), headers(), body(BODY))
    assert refused["immediate_response"]["status"]["code"] == "ServiceUnavailable"
    assert refused["dynamic_metadata"]["smetric"] == {"reason": "no_instance"}


async def test_a_message_out_of_order_ends_the_stream_well(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """Envoy goes on without us: the stream ends with OK, the log and a counter say so."""
    before = metrics.EXCEPTIONS.labels("exchange")._value.get()
    stream = served.stream()
    await stream.write(message(response_body={"body": "eA=="}))
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() is grpc.StatusCode.OK
    assert metrics.EXCEPTIONS.labels("exchange")._value.get() == before + 1
    assert "out of order" in caplog.text


async def test_a_bug_ends_the_stream_well(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a handler would vanish in grpc.aio: it is logged and counted, and the request goes on."""

    def broken(_: object) -> RouteSettings:
        raise ZeroDivisionError

    served.processor._route = broken
    stream = served.stream()
    await stream.write(headers(end=True))
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() is grpc.StatusCode.OK
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("size", [5 << 20, 64 << 20])
async def test_large_bodies_pass(served: Served, size: int) -> None:
    """gRPC's own limit is 4 MiB; ours is beyond the 64 MiB that the shipped Envoy configuration lets through."""
    data = json.dumps({"messages": [{"role": "user", "content": "x" * size}]}).encode()
    _, decided = await ask(served.stream(), headers(), body(data))
    assert decided["dynamic_metadata"]["smetric"]["reason"] == "first_turn"


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


async def test_health_answers_under_every_name() -> None:
    """Check and Watch, ready and not, alive throughout."""
    server, health = grpc.aio.server(), GrpcHealth()
    health.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    serving = health_pb2.HealthCheckResponse.SERVING
    not_serving = health_pb2.HealthCheckResponse.NOT_SERVING
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        await health.set(ready=True)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="readiness"))
        assert (await watch.read()).status == serving
        await health.set(ready=False)
        assert (await watch.read()).status == not_serving
        for name in READINESS:
            assert (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == not_serving
        assert (await stub.Check(health_pb2.HealthCheckRequest(service="liveness"))).status == serving
        watch.cancel()
    await server.stop(0)


async def test_shadow_policies_are_counted_and_do_not_act(served: Served) -> None:
    """Their opinions are in the metrics; the decision is the acting policy's."""
    route = RouteSettings("pool", shadows={"round-robin": {}, "least-loaded": {}})
    served.processor._route = lambda _: route
    before = {
        (policy, agrees): metrics.SHADOW_DECISIONS.labels("pool", policy, agrees)._value.get()
        for policy in route.shadows
        for agrees in ("true", "false")
    }
    streams = [served.stream() for _ in range(2)]
    for stream in streams:
        await ask(stream, headers(), body(BODY))
    seen = {key: metrics.SHADOW_DECISIONS.labels("pool", *key)._value.get() - count for key, count in before.items()}
    assert seen[("least-loaded", "true")] == 2
    assert sum(seen.values()) == 4
    for stream in streams:
        stream.cancel()
    await until_idle(served)


async def test_an_unknown_pool_makes_no_new_series(served: Served) -> None:
    """A pool's name may come from a client's header; the metrics must not grow with it."""
    for number in range(3):
        stream = served.stream(("x-smetric-cluster", f"pool-{number}"))
        await ask(stream, headers(end=True))
        stream.cancel()
    series = generate_latest(metrics.REGISTRY).decode()
    assert 'smetric_decisions_total{policy="smetric",pool="",reason="no_pool"}' in series
    assert "pool-1" not in series
    assert "_created" not in series


def test_the_series_of_an_instance_go_with_it() -> None:
    """Pods come and go for months."""
    metrics.IN_FLIGHT.labels("pool", "10.9.9.9:1").set(1)
    metrics.EVENT_STATE.labels("pool", "10.9.9.9:1", "exact").set(1)
    metrics.forget_instance("pool", "10.9.9.9:1")
    assert "10.9.9.9:1" not in generate_latest(metrics.REGISTRY).decode()
