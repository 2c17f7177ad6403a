"""The exchange as scripts: Envoy's messages in, answers out, for every body mode; then any order of messages at all."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.base.errors import NoInstance
from extproc.base.model import Gateway, Reason
from extproc.processor.body_budget import BodyBudget
from extproc.processor.exchange import CHUNK, Exchange, ProtocolViolation, State
from extproc.processor.messages import (
    BodyMode,
    Continue,
    Decide,
    Event,
    Extend,
    Immediate,
    Modes,
    Mutation,
    OutOfTime,
    Output,
    Override,
    Phase,
    Prefill,
    Prefilled,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    Streamed,
)

HEADERS = {":path": "/v1/chat/completions", ":method": "POST"}
ROUTING = Mutation(set_headers={"x": "1"}, metadata={"envoy.lb": {"x": "1"}})
OK = ResponseHeaders({":status": "200"}, served="10.0.0.1:8000")


def opening(mode: BodyMode, *, end: bool = False, response: BodyMode = BodyMode.NONE) -> RequestHeaders:
    return RequestHeaders(HEADERS, end, mode, response)


def play(exchange: Exchange, *events: Event) -> list[Output]:
    """Feed events; every decision asked for is answered by ROUTING."""
    outputs: list[Output] = []
    for event in events:
        for output in exchange.receive(event):
            outputs.append(output)
            if isinstance(output, Decide):
                outputs += exchange.decided(ROUTING)
    return outputs


def streamed(phase: Phase, *pieces: tuple[bytes, bool]) -> list[Output]:
    return [Streamed(phase, data, end) for data, end in pieces]


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL, BodyMode.UNKNOWN])
def test_buffered_answers_headers_first_and_routes_on_the_body(mode: BodyMode) -> None:
    """The body only comes once the headers are answered; the destination rides on the body's answer."""
    assert play(Exchange(), opening(mode), RequestBody(b"{}", True), OK) == [
        Continue(Phase.REQUEST_HEADERS),
        Decide(HEADERS, b"{}"),
        Continue(Phase.REQUEST_BODY, ROUTING),
        Prefilled("200", "10.0.0.1:8000"),
        Continue(Phase.RESPONSE_HEADERS, override=Override(_known(mode), BodyMode.NONE)),
    ]


def _known(mode: BodyMode) -> BodyMode:
    """What Envoy is told again: a mode that it did not name is taken for BUFFERED."""
    return BodyMode.BUFFERED if mode is BodyMode.UNKNOWN else mode


@pytest.mark.parametrize("response", [BodyMode.NONE, BodyMode.UNKNOWN])
@pytest.mark.parametrize("mode", [BodyMode.NONE, BodyMode.STREAMED, BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL])
@pytest.mark.parametrize("end", [True, False])
def test_envoy_is_asked_for_the_responses_end(mode: BodyMode, response: BodyMode, end: bool) -> None:
    """It would close the stream with nothing more to show, and a load counts for as long as the stream is open."""
    exchange = Exchange()
    play(exchange, opening(mode, end=end, response=response), *([] if end else [RequestBody(b"{}", True)]))
    asked = Override(BodyMode.NONE if end else mode, BodyMode.NONE)
    assert exchange.receive(OK)[1] == Continue(Phase.RESPONSE_HEADERS, override=asked)


@pytest.mark.parametrize(
    ("request_mode", "response", "answer"),
    [
        (BodyMode.FULL_DUPLEX_STREAMED, BodyMode.NONE, OK),  # Envoy takes no override
        (BodyMode.BUFFERED, BodyMode.FULL_DUPLEX_STREAMED, OK),  # nor here
        (BodyMode.BUFFERED, BodyMode.STREAMED, OK),  # it shows the end anyway
        (BodyMode.BUFFERED, BodyMode.NONE, ResponseHeaders({":status": "200"}, end_of_stream=True)),  # this is the end
    ],
)
def test_envoy_is_not_asked_in_vain(request_mode: BodyMode, response: BodyMode, answer: ResponseHeaders) -> None:
    """Where it would take no notice, or has nothing more to show."""
    exchange = Exchange()
    play(exchange, opening(request_mode, response=response), RequestBody(b"{}", True))
    assert exchange.receive(answer)[1] == Continue(Phase.RESPONSE_HEADERS)


ENDLESS: list[dict[str, str]] = [
    {":method": "GET", "upgrade": "websocket"},
    {":method": "CONNECT"},
    {":method": "CONNECT", ":protocol": "connect-udp"},
    {":method": "POST", "content-type": "application/grpc+proto"},
]


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL, BodyMode.UNKNOWN])
@pytest.mark.parametrize("headers", ENDLESS)
def test_a_body_that_ends_with_its_reply_is_not_waited_for(mode: BodyMode, headers: dict[str, str]) -> None:
    """Tunnels and gRPC are decided at their headers, and Envoy, which holds bodies back here, is asked for none."""
    exchange = Exchange(gateway=Gateway(overrides=True))
    none = Override(BodyMode.NONE, BodyMode.NONE)
    assert play(exchange, RequestHeaders(headers, False, mode, BodyMode.NONE)) == [
        Decide(headers, None, Reason.BODY_NOT_SENT),
        Continue(Phase.REQUEST_HEADERS, ROUTING, override=none),
    ]
    assert (exchange.over, exchange.in_doubt) == (False, False)
    assert exchange.receive(OK)[1] == Continue(Phase.RESPONSE_HEADERS, override=none)


def tunnel(overrides: bool | None, response: BodyMode = BodyMode.NONE) -> Exchange:
    """An exchange whose tunnel is on its way."""
    exchange = Exchange(gateway=Gateway(overrides=overrides))
    play(exchange, RequestHeaders(ENDLESS[0], False, BodyMode.BUFFERED, response))
    return exchange


@pytest.mark.parametrize(
    ("overrides", "response"),
    [(False, BodyMode.NONE), (None, BodyMode.FULL_DUPLEX_STREAMED), (True, BodyMode.FULL_DUPLEX_STREAMED)],
)
def test_where_envoy_takes_no_override_a_tunnel_is_left_to_it(overrides: bool | None, response: BodyMode) -> None:
    """It would wait for the body's end; without us it goes on. The load is lost, the request is not."""
    assert tunnel(overrides, response).over


def test_where_nobody_knows_a_tunnel_is_in_doubt_until_it_is_answered() -> None:
    """An answer tells that Envoy obeyed; without one in time it is ejected."""
    answered, silent = tunnel(None), tunnel(None)
    assert answered.in_doubt
    answered.receive(OK)
    assert (answered.over, answered.in_doubt) == (False, False)
    assert silent.receive(OutOfTime()) == []
    assert silent.over


def test_a_body_that_comes_against_our_wish_is_passed() -> None:
    """gRPC's body may end: an Envoy that took no notice shows it, and waits for one answer."""
    exchange = tunnel(None)
    assert exchange.receive(RequestBody(b"x", True)) == [Continue(Phase.REQUEST_BODY)]
    assert not exchange.in_doubt
    assert exchange.receive(RequestBody(b"x", True)) == []


def test_a_buffered_body_before_trailers_decides() -> None:
    """Trailers make the body's end_of_stream false, and may never be shown to us: the body must do."""
    assert play(Exchange(), opening(BodyMode.BUFFERED), RequestBody(b"{}", False), RequestTrailers()) == [
        Continue(Phase.REQUEST_HEADERS),
        Decide(HEADERS, b"{}"),
        Continue(Phase.REQUEST_BODY, ROUTING),
        Continue(Phase.REQUEST_TRAILERS),
    ]


def test_a_duplicate_last_chunk_is_ignored() -> None:
    """Envoy can deliver the end of a large body twice; a second answer would be spurious."""
    exchange = Exchange()
    play(exchange, opening(BodyMode.BUFFERED), RequestBody(b"{}", True))
    assert exchange.receive(RequestBody(b"{}", True)) == []


def test_full_duplex_holds_the_headers_until_the_choice_is_made() -> None:
    """Nothing is answered before the decision; then headers, the whole body, and end_of_stream exactly once."""
    exchange = Exchange()
    assert play(exchange, opening(BodyMode.FULL_DUPLEX_STREAMED), RequestBody(b"{", False)) == []
    assert play(exchange, RequestBody(b"}", True)) == [
        Decide(HEADERS, b"{}"),
        Continue(Phase.REQUEST_HEADERS, ROUTING),
        Streamed(Phase.REQUEST_BODY, b"{}", True),
    ]
    assert exchange.receive(RequestBody(b"}", True)) == []


def test_full_duplex_trailers_end_the_body() -> None:
    """With trailers the body never says end_of_stream, neither does ours, and the trailers come last."""
    events = (opening(BodyMode.FULL_DUPLEX_STREAMED), RequestBody(b"{}", False), RequestTrailers())
    assert play(Exchange(), *events) == [
        Decide(HEADERS, b"{}"),
        Continue(Phase.REQUEST_HEADERS, ROUTING),
        Streamed(Phase.REQUEST_BODY, b"{}", False),
        Continue(Phase.REQUEST_TRAILERS),
    ]


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_full_duplex_gives_back_every_byte_in_small_chunks(size: int) -> None:
    """Whatever is not echoed is lost, and Envoy refuses chunks of 64 KiB."""
    body = bytes(i % 251 for i in range(size))
    outputs = play(Exchange(), opening(BodyMode.FULL_DUPLEX_STREAMED), RequestBody(body, True))
    chunks = [output for output in outputs if isinstance(output, Streamed)]
    assert b"".join(chunk.data for chunk in chunks) == body
    assert all(len(chunk.data) <= CHUNK for chunk in chunks)
    assert [chunk.end_of_stream for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


@pytest.mark.parametrize("mode", [BodyMode.STREAMED, BodyMode.NONE])
def test_where_the_body_comes_too_late_the_headers_decide(mode: BodyMode) -> None:
    """STREAMED and NONE need the destination at the headers: by load alone, and the reason says so."""
    assert play(Exchange(), opening(mode)) == [
        Decide(HEADERS, None, Reason.BODY_NOT_SENT),
        Continue(Phase.REQUEST_HEADERS, ROUTING),
    ]


def test_streamed_gets_one_answer_per_chunk() -> None:
    """Every message of a STREAMED body waits for its answer, and none is a streamed_response."""
    exchange = Exchange()
    play(exchange, opening(BodyMode.STREAMED))
    assert play(exchange, RequestBody(b"a", False), RequestBody(b"b", True)) == [Continue(Phase.REQUEST_BODY)] * 2


@pytest.mark.parametrize("mode", list(BodyMode))
def test_a_request_without_body_decides_at_the_headers(mode: BodyMode) -> None:
    """GET /v1/models and its like are routed by load, in every mode, and no empty body is invented."""
    assert play(Exchange(), opening(mode, end=True)) == [
        Decide(HEADERS, None, Reason.NO_BODY),
        Continue(Phase.REQUEST_HEADERS, ROUTING),
    ]


def test_response_bodies_pass_in_every_mode() -> None:
    """Where an operator has response bodies sent, they are echoed (full duplex) or answered, never changed."""
    duplex, other = Exchange(), Exchange()
    end = (OK, ResponseBody(b"x" * (CHUNK + 1), True))
    outputs = play(duplex, opening(BodyMode.BUFFERED, end=True, response=BodyMode.FULL_DUPLEX_STREAMED), *end)
    assert outputs[-2:] == streamed(Phase.RESPONSE_BODY, (b"x" * CHUNK, False), (b"x", True))
    outputs = play(other, opening(BodyMode.BUFFERED, end=True, response=BodyMode.STREAMED), *end, ResponseTrailers())
    assert outputs[-2:] == [Continue(Phase.RESPONSE_BODY), Continue(Phase.RESPONSE_TRAILERS)]


def test_an_answer_before_the_decision_passes() -> None:
    """Envoy itself may answer (a body over its limit) while we wait for the body."""
    exchange = Exchange()
    play(exchange, opening(BodyMode.BUFFERED))
    refusal = ResponseHeaders({":status": "413"})
    assert play(exchange, refusal) == [Prefilled("413", None), Continue(Phase.RESPONSE_HEADERS)]


@pytest.mark.parametrize("mode", [BodyMode.STREAMED, BodyMode.FULL_DUPLEX_STREAMED])
def test_an_answer_that_opens_the_stream_passes_in_its_mode(mode: BodyMode) -> None:
    """A filter before ours refused the request: its answer is all that we see, and is given back as it must be."""
    refusal = ResponseHeaders({":status": "403"}, modes=Modes(BodyMode.BUFFERED, mode))
    told = play(Exchange(), refusal, ResponseBody(b"no", True))
    passed = Streamed(Phase.RESPONSE_BODY, b"no", True) if "DUPLEX" in mode.value else Continue(Phase.RESPONSE_BODY)
    assert told == [Prefilled("403", None), Continue(Phase.RESPONSE_HEADERS), passed]


def test_without_headers_the_body_still_routes() -> None:
    """`request_header_mode: SKIP` hides the path, which is the router's to judge."""
    assert play(Exchange(), RequestBody(b"{}", True)) == [Decide({}, b"{}"), Continue(Phase.REQUEST_BODY, ROUTING)]


def test_headers_that_envoy_skips_are_not_answered() -> None:
    """Whatever opens the stream tells the modes, and each message that comes is answered as its mode demands."""
    duplex = Modes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED)
    exchange = Exchange()
    assert play(exchange, RequestBody(b"{", False, modes=duplex), RequestBody(b"}", True)) == [
        Decide({}, b"{}"),
        Streamed(Phase.REQUEST_BODY, b"{}", True),
    ]
    assert exchange.receive(ResponseBody(b"x", True)) == [Streamed(Phase.RESPONSE_BODY, b"x", True)]
    alone = Exchange()
    assert alone.receive(ResponseBody(b"x", True, Modes(BodyMode.NONE, BodyMode.STREAMED))) == [
        Continue(Phase.RESPONSE_BODY)
    ]


def test_a_refusal_is_openais_error() -> None:
    """The client reads the same JSON shape that OpenAI's own errors have."""
    exchange = Exchange()
    exchange.receive(opening(BodyMode.BUFFERED, end=True))
    (answer,) = exchange.refused(NoInstance("nobody is here"), ROUTING)
    assert isinstance(answer, Immediate)
    assert answer.status == 503
    assert json.loads(answer.body) == {
        "error": {
            "message": "nobody is here",
            "type": "service_unavailable",
            "param": None,
            "code": "no_instance_available",
        }
    }
    assert exchange.receive(RequestBody(b"late", True)) == []


def prefilling(mode: BodyMode, *events: Event) -> tuple[Exchange, list[Output]]:
    """An exchange that waits for a prefill, and what it wants done for it."""
    exchange = Exchange()
    for event in (opening(mode), *events):
        outputs = exchange.receive(event)
    assert isinstance(outputs[-1], Decide)
    return exchange, exchange.prefill(5_000)


def test_buffered_asks_for_time_and_changes_body_and_length_together() -> None:
    """Envoy's timer runs while the prompt is computed; without a content-length it would answer 500."""
    exchange, wait = prefilling(BodyMode.BUFFERED, RequestBody(b"{}", True))
    assert wait == [Extend(5_000), Prefill(HEADERS, b"{}")]
    lengthened = Mutation({"x": "1", "content-length": "9"}, metadata=ROUTING.metadata)
    assert exchange.decided(ROUTING, b'{"x": 12}') == [Continue(Phase.REQUEST_BODY, lengthened, b'{"x": 12}')]


@pytest.mark.parametrize("trailers", [False, True])
def test_full_duplex_needs_no_time_and_streams_the_new_body(trailers: bool) -> None:
    """No timer runs there; the new body takes the place of all that was collected, before trailers if there are any."""
    end = [RequestTrailers()] if trailers else []
    exchange, wait = prefilling(
        BodyMode.FULL_DUPLEX_STREAMED, RequestBody(b"{", False), RequestBody(b"}", not trailers), *end
    )
    assert wait == [Prefill(HEADERS, b"{}")]
    body = b"x" * (CHUNK + 1)
    lengthened = Mutation({"x": "1", "content-length": str(len(body))}, metadata=ROUTING.metadata)
    assert exchange.decided(ROUTING, body) == [
        Continue(Phase.REQUEST_HEADERS, lengthened),
        *streamed(Phase.REQUEST_BODY, (body[:CHUNK], False), (b"x", not trailers)),
        *([Continue(Phase.REQUEST_TRAILERS)] if trailers else []),
    ]


def test_after_a_prefill_anything_may_be_decided() -> None:
    """A body as it came, or a refusal; and nothing is prefilled that waits for no decision."""
    exchange, _ = prefilling(BodyMode.BUFFERED, RequestBody(b"{}", True))
    assert exchange.decided(ROUTING) == [Continue(Phase.REQUEST_BODY, ROUTING)]
    with pytest.raises(ProtocolViolation, match="a prefill while routed"):
        exchange.prefill(1)
    exchange, _ = prefilling(BodyMode.BUFFERED, RequestBody(b"{}", True))
    assert isinstance(exchange.refused(NoInstance("x"), ROUTING)[0], Immediate)


def test_what_has_no_row_does_not_exist() -> None:
    """A message out of order is an error, not a guess."""
    with pytest.raises(ProtocolViolation, match="RequestTrailers while opening"):
        Exchange().receive(RequestTrailers())
    with pytest.raises(ProtocolViolation, match="a decision while opening"):
        Exchange().decided(ROUTING)


MODES = st.none() | st.builds(Modes, st.sampled_from(BodyMode), st.sampled_from(BodyMode))
EVENTS = (
    st.builds(RequestHeaders, st.just(HEADERS), st.booleans(), st.sampled_from(BodyMode), st.sampled_from(BodyMode))
    | st.builds(RequestBody, st.binary(max_size=5), st.booleans(), st.none(), MODES)
    | st.just(RequestTrailers())
    | st.just(OK)
    | st.builds(ResponseBody, st.binary(max_size=5), st.booleans(), MODES)
    | st.just(ResponseTrailers())
    | st.just(OutOfTime())
)


@given(st.lists(EVENTS, max_size=12), st.booleans())
def test_any_order_of_messages_is_answered_or_refused(events: Sequence[Event], refuse: bool) -> None:
    """No order of messages raises anything but ProtocolViolation, asks for two decisions, or leaves one owed."""
    exchange, decisions = Exchange(), 0
    for event in events:
        try:
            outputs = exchange.receive(event)
        except ProtocolViolation:
            break
        assert all(not isinstance(output, Decide) for output in outputs[:-1])
        if outputs and isinstance(outputs[-1], Decide):
            decisions += 1
            assert exchange.refused(NoInstance("x"), ROUTING) if refuse else exchange.decided(ROUTING)
        assert exchange.state is not State.DECIDING
    assert decisions <= 1


@given(st.sampled_from([BodyMode.FULL_DUPLEX_STREAMED]), st.lists(st.binary(max_size=40), min_size=1), st.booleans())
def test_full_duplex_neither_loses_nor_adds_a_byte(mode: BodyMode, pieces: list[bytes], trailers: bool) -> None:
    """However a body is cut, what goes to the engine is what the client sent."""
    bodies = [RequestBody(piece, not trailers and i == len(pieces) - 1) for i, piece in enumerate(pieces)]
    outputs = play(Exchange(), opening(mode), *bodies, *([RequestTrailers()] if trailers else []))
    chunks = [output for output in outputs if isinstance(output, Streamed)]
    assert b"".join(chunk.data for chunk in chunks) == b"".join(pieces)
    assert sum(chunk.end_of_stream for chunk in chunks) == (0 if trailers else 1)
    assert (Continue(Phase.REQUEST_TRAILERS) in outputs) == trailers


def test_streams_share_the_room_for_their_bodies() -> None:
    """What one stream collects another cannot; what is too much streams through, and all of it is given back: once the
    decision is made, and where a stream ends before it."""
    budget = BodyBudget(100)
    duplex = opening(BodyMode.FULL_DUPLEX_STREAMED)
    stalled, refused = Exchange(budget=budget), Exchange(budget=budget)
    assert play(stalled, duplex, RequestBody(b"x" * 80, False)) == []
    answers = play(refused, duplex, RequestBody(b"y" * 30, False), RequestBody(b"z", True))
    assert Decide(HEADERS, None, Reason.BODY_TOO_LARGE) in answers
    assert [one.data for one in answers if isinstance(one, Streamed)] == [b"y" * 30, b"z"]
    assert not budget.take(21)
    stalled.close()
    assert Decide(HEADERS, b"w" * 100) in play(Exchange(budget=budget), duplex, RequestBody(b"w" * 100, True))
    assert budget.take(100)
