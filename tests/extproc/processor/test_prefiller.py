"""Prefill requests over real HTTP: instances that compute, refuse, hang, lie or die, and a client that hangs up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from extproc.base import metrics
from extproc.base.load import Load
from extproc.base.model import Disaggregation, Instance, Role
from extproc.index.memory import MemoryIndex
from extproc.processor.messages import (
    Answer,
    BodyMode,
    Continue,
    Event,
    Extend,
    Phase,
    RequestBody,
    RequestHeaders,
    Streamed,
)
from extproc.processor.prefiller import MAX_ANSWER_BYTES, Prefiller
from extproc.processor.server import Processor
from extproc.processor.stream import Services
from extproc.prompts.renderer import PlainRenderer
from extproc.routing.pools.loads import Loads
from extproc.routing.pools.pool import Pool
from extproc.routing.route_settings import RouteSettings
from extproc.routing.router import Router

PATH = "/v1/chat/completions"
BODY = json.dumps({"messages": [{"role": "user", "content": "hello " * 200}], "max_tokens": 50}).encode()
PARAMS = {"do_remote_prefill": True, "remote_block_ids": [[1, 2]], "remote_host": "10.0.0.1"}
HEADERS = {":path": PATH, ":method": "POST", "authorization": "Bearer x", "x-request-id": "r", "cookie": "c"}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeInstance:
    """A prefill instance that does what a test wants, and remembers what it was asked and who hung up."""

    def __init__(self, behaviour: str) -> None:
        self.asked: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.hung_up = 0
        self._behave: Handler = getattr(self, behaviour)
        app = web.Application(client_max_size=2**26)
        app.router.add_post(PATH, self._answer)
        self.server = TestServer(app)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.asked.append((headers, await request.json()))
        return await self._behave(request)

    async def computes(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"choices": [], "kv_transfer_params": PARAMS})

    async def refuses(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"error": "no"}, status=500)

    async def rejects(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"error": "too long"}, status=400)

    async def is_busy(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"error": "later"}, status=429)

    async def redirects(self, request: web.Request) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect(f"{request.path}?again")

    async def has_no_connector(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"choices": [], "kv_transfer_params": None})

    async def is_no_engine(self, _: web.Request) -> web.StreamResponse:
        return web.Response(body=b"<html>")

    async def talks_too_much(self, _: web.Request) -> web.StreamResponse:
        return web.Response(body=b" " * MAX_ANSWER_BYTES + json.dumps({"kv_transfer_params": PARAMS}).encode())

    async def hangs(self, request: web.Request) -> web.StreamResponse:
        try:
            while request.transport is not None and not request.transport.is_closing():
                await asyncio.sleep(0.01)
        finally:  # a server may cancel its handler, or only close the transport
            self.hung_up += 1
        return web.Response()

    async def dies(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-length": "1000"})
        await response.prepare(request)
        await response.write(b'{"choices"')
        assert request.transport is not None
        request.transport.abort()
        return response


class Disaggregated:
    """A processor over prefill instances of the given behaviours and one decode instance that nobody asks."""

    def __init__(
        self, *prefill: FakeInstance, timeout_s: float = 0.3, mode: Disaggregation = Disaggregation.FILTER
    ) -> None:
        self.loads = Loads()
        addresses = [f"127.0.0.1:{fake.server.port}" for fake in prefill]
        instances = [Instance(address, role=Role.PREFILL) for address in addresses]
        self.pool = Pool("pool", PlainRenderer(), instances=[*instances, Instance("10.0.0.9:8000", role=Role.DECODE)])
        self.prefiller = Prefiller()
        route = RouteSettings("pool", disaggregation=mode, prefill_timeout_s=timeout_s)
        router = Router(MemoryIndex(), self.loads)
        services = Services(router, {"pool": self.pool}, lambda _: route, lambda *_: None, self.prefiller)
        self.processor = Processor(services)

    async def exchange(self, mode: BodyMode = BodyMode.BUFFERED, body: bytes = BODY, path: str = PATH) -> list[Answer]:
        """The answers to one request, while it is still in flight."""
        answers: list[Answer] = []
        async for answer in self.stream(mode, body, path):
            answers.append(answer)
            if isinstance(answer, Streamed) and answer.end_of_stream:
                return answers
            if isinstance(answer, Continue) and answer.phase is Phase.REQUEST_BODY:
                return answers
        return answers

    def stream(self, mode: BodyMode = BodyMode.BUFFERED, body: bytes = BODY, path: str = PATH) -> AsyncIterator[Answer]:
        return self.processor.process(None, _Context(_events(mode, body, path)))


class _Context:
    """What gRPC gives a stream."""

    def __init__(self, events: AsyncIterator[Event]) -> None:
        self._events = events

    async def read(self) -> Event:
        return await anext(self._events)

    def invocation_metadata(self) -> tuple[()]:
        return ()


async def _events(mode: BodyMode, body: bytes, path: str) -> AsyncIterator[Event]:
    yield RequestHeaders(HEADERS | {":path": path}, False, mode, BodyMode.NONE)
    yield RequestBody(body, True)
    await asyncio.sleep(60)


Build = Callable[..., Awaitable[tuple[Disaggregated, list[FakeInstance]]]]


@pytest.fixture
async def build() -> AsyncIterator[Build]:
    """Makes a processor over prefill instances of these behaviours, and closes all of it."""
    async with AsyncExitStack() as stack:

        async def make(*behaviours: str, **options: Any) -> tuple[Disaggregated, list[FakeInstance]]:
            fakes = [FakeInstance(behaviour) for behaviour in behaviours]
            for fake in fakes:
                await stack.enter_async_context(fake.server)
            made = Disaggregated(*fakes, **options)
            stack.push_async_callback(made.prefiller.close)
            return made, fakes

        yield make


def count(outcome: str) -> float:
    return metrics.REGISTRY.get_sample_value("smetric_prefills_total", {"pool": "pool", "outcome": outcome}) or 0.0


def explanation(answers: list[Answer]) -> dict[str, Any]:
    routings = [answer.routing for answer in answers if isinstance(answer, Continue) and answer.routing is not None]
    return dict(routings[-1].metadata["smetric"])


async def test_a_path_that_a_route_rewrites_is_no_hindrance(build: Build) -> None:
    """The prefill instance is asked where it serves the API, in UTF-8, whatever the client's path and encoding are."""
    made, (fake,) = await build("computes")
    *_, body = await made.exchange(body=BODY.decode().encode("utf-16"), path="/team-a" + PATH)
    assert fake.asked[0][1]["messages"] == json.loads(BODY)["messages"]
    assert isinstance(body, Continue)
    assert body.body is not None
    assert json.loads(body.body) == json.loads(BODY) | {"kv_transfer_params": PARAMS}


async def test_the_prefill_request_and_what_follows(build: Build) -> None:
    """The instance gets the prompt, who asks, and one token to sample; the destination gets the client's body with the
    params of that answer, under the right length; Envoy is asked to wait first."""
    made, (fake,) = await build("computes")
    headers, extend, body = await made.exchange()
    assert headers == Continue(Phase.REQUEST_HEADERS)
    assert extend == Extend(1_600)
    sent, asked = fake.asked[0]
    assert asked["messages"] == json.loads(BODY)["messages"]
    assert asked["max_tokens"] == 1
    assert asked["kv_transfer_params"]["do_remote_decode"] is True
    assert (sent["authorization"], sent["x-request-id"]) == ("Bearer x", "r")
    assert "cookie" not in sent
    assert isinstance(body, Continue)
    assert body.body is not None
    assert body.routing is not None
    assert json.loads(body.body) == json.loads(BODY) | {"kv_transfer_params": PARAMS}
    assert body.routing.set_headers["content-length"] == str(len(body.body))
    assert body.routing.set_headers["x-gateway-destination-endpoint"] == "10.0.0.9:8000"
    assert "x-prefiller-host-port" in body.routing.remove_headers
    assert explanation([body])["prefill_instance"] == made.pool.instances[0].name


async def test_a_sidecar_is_only_told(build: Build) -> None:
    """We ask nobody and change no body: the header names the prefill instance, and no extra time is needed."""
    made, (fake,) = await build("computes", mode=Disaggregation.SIDECAR)
    headers, body = await made.exchange()
    assert headers == Continue(Phase.REQUEST_HEADERS)
    assert isinstance(body, Continue)
    assert body.body is None
    assert body.routing is not None
    assert body.routing.set_headers["x-prefiller-host-port"] == made.pool.instances[0].address
    assert "x-prefiller-host-port" not in body.routing.remove_headers
    assert not fake.asked


async def test_full_duplex_gives_the_new_body_back_in_pieces(build: Build) -> None:
    """No timer of Envoy's runs there, so none is extended; all pieces together are the new body."""
    made, _ = await build("computes")
    body = json.dumps({"messages": [{"role": "user", "content": "long " * 30_000}]}).encode()
    headers, *pieces = await made.exchange(BodyMode.FULL_DUPLEX_STREAMED, body)
    assert isinstance(headers, Continue)
    assert headers.body is None
    assert headers.routing is not None
    whole = b"".join(piece.data for piece in pieces if isinstance(piece, Streamed))
    assert json.loads(whole)["kv_transfer_params"] == PARAMS
    assert headers.routing.set_headers["content-length"] == str(len(whole))


@pytest.mark.parametrize(
    ("behaviour", "outcome"),
    [
        ("refuses", "refused"),
        ("redirects", "refused"),
        ("is_busy", "refused"),
        ("has_no_connector", "no_params"),
        ("is_no_engine", "no_params"),
        ("talks_too_much", "no_params"),
        ("hangs", "timeout"),
        ("dies", "unreachable"),
    ],
)
async def test_a_bad_instance_costs_a_request_nothing_but_time(build: Build, behaviour: str, outcome: str) -> None:
    """The request moves to the other prefill instance, and only one that did not answer is ejected after."""
    made, (bad, _) = await build(behaviour, "computes", timeout_s=0.3 if behaviour == "hangs" else 5.0)
    before = count(outcome)
    answers = await made.exchange()
    body = answers[-1]
    assert isinstance(body, Continue)
    assert body.body is not None
    assert json.loads(body.body)["kv_transfer_params"] == PARAMS
    assert explanation(answers)["prefill_instance"] == made.pool.instances[1].name
    assert count(outcome) == before + 1
    ejected = made.pool.instances[0] not in made.pool.candidates(asyncio.get_running_loop().time())
    assert ejected is (outcome in ("timeout", "unreachable"))
    assert len(bad.asked) == 1


@pytest.mark.parametrize("behaviour", ["refuses", "dies"])
async def test_without_any_prefill_the_decode_instance_computes(build: Build, behaviour: str) -> None:
    """After two failures the untouched body goes to the decode instance, the reason says so, and the prompt counts as
    that one's load."""
    made, fakes = await build(*[behaviour] * 3, timeout_s=5.0)
    answers = await made.exchange()
    body = answers[-1]
    assert isinstance(body, Continue)
    assert body.body is None
    assert body.routing is not None
    assert "content-length" not in body.routing.set_headers
    said = explanation(answers)
    assert said["reason"] == "prefill_failed"
    assert said["instance"] == "10.0.0.9:8000"
    assert "prefill_instance" not in said
    assert sum(len(fake.asked) for fake in fakes) == 2


async def test_a_request_at_fault_is_not_tried_again(build: Build) -> None:
    """The decode instance tells the client what is wrong with it, after one prefill instance found out."""
    made, fakes = await build("rejects", "rejects")
    assert explanation(await made.exchange())["reason"] == "prefill_failed"
    assert sum(len(fake.asked) for fake in fakes) == 1


async def test_loads_while_a_prompt_is_prefilled(build: Build) -> None:
    """The prefill instance owes the prompt until its answer; then only the decode instance has a request in flight; a
    client that hangs up cancels the prefill and leaves nothing."""
    made, (fake,) = await build("hangs", timeout_s=30.0)
    prefill, decode = (instance.name for instance in made.pool.instances)
    running = asyncio.create_task(made.exchange())
    async with asyncio.timeout(10):
        while not fake.asked:
            await asyncio.sleep(0.01)
    held = made.loads.snapshot("pool")
    assert held[prefill][0] == 1
    assert held[prefill][1] > 1_000
    assert held[decode] == Load(1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert made.loads.snapshot("pool") == {}
    async with asyncio.timeout(10):
        while not fake.hung_up:
            await asyncio.sleep(0.01)


async def test_unprefilled_bytes_fall_with_the_answer_of_the_prefill(build: Build) -> None:
    """Though the decode instance has not answered yet."""
    made, _ = await build("computes")
    stream = made.stream()
    for _ in range(3):
        await anext(stream)
    assert made.loads.snapshot("pool") == {"10.0.0.9:8000": Load(1)}
    await stream.aclose()  # type: ignore[attr-defined]
    assert made.loads.snapshot("pool") == {}


async def test_what_cannot_be_halved_asks_nobody(build: Build) -> None:
    """A body that is no request goes to the decode instance as it came."""
    made, (fake,) = await build("computes")
    for body in (b"{", b"[]", b'{"messages": [{"role": "user", "content": "x"}], "n": 2}'):
        answers = await made.exchange(body=body)
        assert answers[-1] == Continue(Phase.REQUEST_BODY, answers[-1].routing)  # type: ignore[union-attr]
        assert explanation(answers)["instance"] == "10.0.0.9:8000"
    assert not fake.asked
