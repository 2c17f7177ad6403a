"""From the first bytes of an answer to the next request: how a stored response's keeper is learnt and found again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extproc.base.errors import IndexUnavailable
from extproc.base.model import Instance, Reason
from extproc.index.memory import MemoryIndex
from extproc.processor import destination, wire
from extproc.processor.exchange import Exchange
from extproc.processor.messages import (
    BodyMode,
    Continue,
    Mutation,
    Override,
    Phase,
    Prefilled,
    RequestBody,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
    Seen,
    Streamed,
)
from extproc.prompts.renderer import PlainRenderer
from extproc.routing.pools.admission import Admission
from extproc.routing.pools.loads import Loads
from extproc.routing.pools.pool import Pool
from extproc.routing.query import Ask, read
from extproc.routing.route_settings import RouteSettings
from extproc.routing.router import Router
from tests.support.ext_proc_client import Served, answered, ask, body, headers, message

RESPONSES = "/v1/responses"
ROUTE = RouteSettings("pool", "smetric", {})
SHOWN = Override(BodyMode.BUFFERED, BodyMode.STREAMED)
PASSED = Continue(Phase.RESPONSE_BODY)


def routed(response_mode: BodyMode = BodyMode.NONE, *, watching: bool = True) -> Exchange:
    """An exchange whose request is on its way."""
    exchange = Exchange()
    exchange.receive(RequestHeaders({":path": RESPONSES}, False, BodyMode.BUFFERED, response_mode))
    exchange.receive(RequestBody(b"{}", True))
    exchange.watching = watching
    exchange.decided(Mutation())
    return exchange


def test_a_response_is_shown_as_long_as_it_is_watched() -> None:
    """Envoy is asked once; each piece is seen before it is passed on, and no more of them than are wanted."""
    exchange = routed()
    begun = exchange.receive(ResponseHeaders({":status": "200"}))
    assert begun == [Prefilled("200", None), Continue(Phase.RESPONSE_HEADERS, override=SHOWN)]
    assert exchange.receive(ResponseBody(b"a", False)) == [Seen(b"a"), PASSED]
    exchange.watching = False
    assert exchange.receive(ResponseBody(b"b", True)) == [PASSED]


@pytest.mark.parametrize(
    ("watching", "answer"),
    [
        (False, ResponseHeaders({":status": "200"})),
        (True, ResponseHeaders({":status": "404"})),
        (True, ResponseHeaders({":status": "200"}, end_of_stream=True)),
    ],
)
def test_no_other_response_is_shown(watching: bool, answer: ResponseHeaders) -> None:
    """Not where nothing is stored, not an error, not one without a body."""
    exchange = routed(watching=watching)
    (_, passed) = exchange.receive(answer)
    assert isinstance(passed, Continue)
    assert passed.override in (None, Override(BodyMode.BUFFERED, BodyMode.NONE))
    assert exchange.receive(ResponseBody(b"x", True)) == [PASSED]


def test_a_response_that_an_operator_shows_is_not_asked_for() -> None:
    """In every mode in which it comes, it is seen and given back as that mode demands."""
    exchange = routed(BodyMode.FULL_DUPLEX_STREAMED)
    assert exchange.receive(ResponseHeaders({":status": "200"}))[1] == Continue(Phase.RESPONSE_HEADERS)
    passed = Streamed(Phase.RESPONSE_BODY, b"a", end_of_stream=True)
    assert exchange.receive(ResponseBody(b"a", True)) == [Seen(b"a"), passed]


def test_what_envoy_is_told() -> None:
    """The override asks for a streamed body; a new route is asked for only where a pool was chosen."""
    shown = wire.ProcessingResponse.FromString(wire.encode(Continue(Phase.RESPONSE_HEADERS, override=SHOWN)))
    assert shown.mode_override.response_body_mode == 1
    assert not wire.ProcessingResponse.FromString(wire.encode(PASSED)).HasField("mode_override")
    for new_route in (True, False):
        answer = Continue(Phase.REQUEST_BODY, Mutation({"a": "b"}, new_route=new_route))
        told = wire.ProcessingResponse.FromString(wire.encode(answer))
        assert told.request_body.response.clear_route_cache is new_route


class Setup:
    """A router over three instances."""

    def __init__(self, index: MemoryIndex | None = None) -> None:
        self.loads = Loads()
        self.pool = Pool("pool", PlainRenderer(), instances=[Instance(f"10.0.0.{i}:8000") for i in range(3)])
        self.router = Router(index or MemoryIndex(), self.loads)

    async def pick(self, path: str = RESPONSES, turn: int | None = None, **fields: Any) -> Any:
        sent = json.dumps(fields).encode() if fields else None
        ask = Ask(path, sent, None if fields else Reason.NO_BODY, turn)
        return (await self.router.pick(self.pool, ROUTE, ask, now=0.0)).choice


async def test_a_follow_up_goes_to_the_keeper() -> None:
    """By the id in the body or in the path, and however loaded the keeper is; an unknown id goes by load."""
    setup = Setup()
    await setup.router.remember(setup.pool, "resp_1", "10.0.0.2:8000")
    for _ in range(9):
        setup.loads.start("pool", "10.0.0.2:8000", 0)
    kept = await setup.pick(input="x", previous_response_id="resp_1")
    assert (kept.instance.address, kept.reason) == ("10.0.0.2:8000", Reason.PREVIOUS_RESPONSE)
    read = await setup.pick(f"{RESPONSES}/resp_1")
    assert (read.instance.address, read.reason) == ("10.0.0.2:8000", Reason.PREVIOUS_RESPONSE)
    cancelled = await setup.pick(f"{RESPONSES}/resp_1/cancel", any="body")
    assert cancelled.reason is Reason.PREVIOUS_RESPONSE
    for unknown in ("resp_2", "x" * 5000):
        other = await setup.pick(input="x", previous_response_id=unknown)
        assert (other.reason, other.instance.address == "10.0.0.2:8000") == (Reason.UNKNOWN_RESPONSE, False)


async def test_a_keeper_that_is_gone() -> None:
    """An instance that left the pool, or cannot be reached, keeps nothing any more."""
    setup = Setup()
    await setup.router.remember(setup.pool, "resp_1", "10.0.0.2:8000")
    setup.pool.instances = setup.pool.instances[:2]
    assert (await setup.pick(input="x", previous_response_id="resp_1")).reason is Reason.UNKNOWN_RESPONSE


class Down(MemoryIndex):
    """An index that is away."""

    async def remember(self, pool: str, response: str, instance: str, ttl_s: int) -> None:
        raise IndexUnavailable

    async def recall(self, pool: str, response: str) -> str | None:
        raise IndexUnavailable


async def test_an_index_that_is_away_costs_no_request() -> None:
    """Nothing is remembered, and who refers to it goes by load."""
    setup = Setup(Down())
    await setup.router.remember(setup.pool, "resp_1", "10.0.0.2:8000")
    choice = await setup.pick(input="x", previous_response_id="resp_1")
    assert choice.reason is Reason.INDEX_UNAVAILABLE


async def test_a_whole_exchange_remembers_who_answered() -> None:
    """The id is noted before its piece is passed on, under the host that Envoy reached in the end."""
    async with Served().run() as served:
        stream = served.stream()
        first = body(json.dumps({"input": "hello", "model": "tiny"}).encode())
        piece = message(response_body={"body": "eyJpZCI6ICJyZXNwXzEiLCA="})  # {"id": "resp_1",
        *_, asked, passed = await ask(stream, headers(RESPONSES), first, answered("10.0.0.1:8000"), piece)
        assert asked["mode_override"]["response_body_mode"] == "STREAMED"
        assert "response_body" in passed
        follow_up = body(json.dumps({"input": "go on", "previous_response_id": "resp_1"}).encode())
        decided = (await ask(served.stream(), headers(RESPONSES), follow_up))[-1]
        explained = decided["dynamic_metadata"]["smetric"]
        assert (explained["instance"], explained["reason"]) == ("10.0.0.1:8000", "previous_response")
        stream.cancel()


def test_a_chosen_pool_is_told() -> None:
    """By a header that a route can match, overwriting a client's own, and in the access log."""
    loads, pool = Loads(), Pool("b", PlainRenderer(), instances=[Instance("10.0.0.1:8000")])
    router = Router(MemoryIndex(), loads)
    choice = router.decide(pool, ROUTE, read(pool, {}, Ask()), {}, Admission(), now=0.0).choice
    told = destination.to(choice, 0.0, pool="b")
    assert (told.set_headers["x-smetric-pool"], told.metadata["smetric"]["pool"], told.new_route) == ("b", "b", True)
    assert not destination.to(choice, 0.0).new_route
