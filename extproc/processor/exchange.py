"""One ext_proc stream as a state machine without I/O: Envoy's messages in, answers and requests for a decision out.

It owns the order of a stream: which message may come when, which answer it gets, and when the destination must be
known. It refuses to know protobuf (`wire.py`), gRPC (`server.py`) and how an instance is chosen (`router.py`).

    exchange = Exchange()
    for output in exchange.receive(event):
        match output:
            case Decide():    for answer in exchange.decided(routing): ...   (or exchange.refused(error))
            case Prefilled(): the engine has answered
            case Prefill():   what `decided` takes once another instance has computed the prompt
            case _:           an answer for Envoy, in this order

The rules it keeps are Envoy's: in BUFFERED mode headers are answered before the body comes and the destination rides on
the body's answer; in FULL_DUPLEX_STREAMED mode the header answer is held back until the decision, then headers, the
whole body again in chunks, and trailers; STREAMED and NONE need the destination at the headers, as does every request
whose body ends only with its reply (upgrades, CONNECT, gRPC).

Envoy closes the stream as soon as it has nothing more to show, and a load is counted for as long as the stream is open:
therefore the response's headers are answered with the wish to be shown the response's end.

Longer than other files, because the table, its rows and what they share are read together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from http import HTTPStatus
from typing import ClassVar

from extproc.base.errors import ExtProcError
from extproc.base.model import Gateway, Reason
from extproc.processor import header_limits
from extproc.processor.body_budget import BodyBudget
from extproc.processor.header_limits import CONTENT_LENGTH, Extent
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
    Seen,
    Streamed,
)
from extproc.routing.pools.admission import Subset

CHUNK = 62_000  # bytes of one streamed_response: Envoy refuses messages of 64 KiB and more
_CLOSED_EARLY = frozenset({BodyMode.NONE, BodyMode.FULL_DUPLEX_STREAMED})  # at the response's headers
_GRPC = "application/grpc"
_EVENT_STREAM = "text/event-stream"
# Modes in which Envoy keeps a request until its body has ended; to 1.39, STREAMED is one until its body begins.
_HELD_BACK = frozenset({BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL, BodyMode.UNKNOWN, BodyMode.STREAMED})


_ANY = Gateway()


class ProtocolViolation(Exception):
    """Envoy sent what no row of the table allows. The stream cannot go on; the request can."""


class State(Enum):
    """Where a stream stands."""

    OPENING = "opening"  # nothing has come yet
    RECEIVING = "receiving"  # the request body is coming
    DECIDING = "deciding"  # the caller owes a decision
    ROUTED = "routed"  # the request is on its way to the engine
    RESPONDING = "responding"  # the engine's answer is on its way to the client
    ANSWERED = "answered"  # we answered the client ourselves


class Exchange:
    """One stream. `receive`, `decided` and `refused` return what to do next, in order."""

    def __init__(
        self,
        served_header: str | None = None,
        gateway: Gateway = _ANY,
        *,
        max_body: float = math.inf,
        budget: BodyBudget | None = None,
    ) -> None:
        """`served_header` names a response header that shall tell who answered; `gateway` is the Envoy that asks.

        `max_body` is how many bytes of a FULL_DUPLEX_STREAMED body are collected, `budget` what all streams may collect
        together: what is more streams through.
        """
        self.state = State.OPENING
        self.watching = False  # whether the caller wants to see the response, or still more of it
        self.unended = False  # a stream of events is the response, and Envoy may let go of us before it ends
        self.left_out: tuple[str, ...] = ()  # headers of the decision for which the request had no room
        self.over = False  # nothing that Envoy could still say matters: the caller ends the stream
        self._served_header = served_header
        self._gateway = gateway
        self._max_body = max_body
        self._request = RequestHeaders({})
        self._subset: Subset | None = None
        self._body: list[bytes | memoryview] = []
        self._size = 0
        self._budget = budget or BodyBudget()
        self._taken = 0  # bytes of the budget
        self._request_mode = BodyMode.UNKNOWN
        self._response_mode = BodyMode.UNKNOWN
        self._answer_due = Phase.REQUEST_HEADERS  # the message that the decision will ride on
        self._trailers = False
        self._headers_seen = True  # the request's; where an operator skips them, they are not to be answered either
        self._streaming = False  # FULL_DUPLEX_STREAMED, decided, and the body still comes
        self._doubted = False  # decided at the headers, and Envoy may hold the request back all the same
        self._unwanted = False  # decided at the headers, with the wish to see nothing of a body that Envoy holds back

    @property
    def collecting(self) -> bool:
        """Whether the body is ours to wait for and to hold: in all other modes Envoy holds it, under its own timers."""
        return self.state is State.RECEIVING and self._request_mode is BodyMode.FULL_DUPLEX_STREAMED

    @property
    def dispensable(self) -> bool:
        """Whether Envoy can go on without us and lose nothing: the request is on its way, and we hold no part of it."""
        return self.state in (State.ROUTED, State.RESPONDING)

    @property
    def in_doubt(self) -> bool:
        """Whether Envoy may be waiting, against our wish, for the end of a body that never ends: that we cannot see."""
        return self._doubted and self.state is State.ROUTED

    def receive(self, event: Event) -> list[Output]:
        """Take Envoy's next message. Raises ProtocolViolation where the table has no row for it."""
        try:
            row = self.TRANSITIONS[self.state, type(event)]
        except KeyError:
            raise ProtocolViolation(f"{type(event).__name__} while {self.state.value}") from None
        return row(self, event)

    def prefill(self, timeout_ms: int) -> list[Output]:
        """The answer takes so long, because of a prefill elsewhere: Envoy must wait, where a timer of its runs."""
        if self.state is not State.DECIDING:
            raise ProtocolViolation(f"a prefill while {self.state.value}")
        duplex = self._request_mode is BodyMode.FULL_DUPLEX_STREAMED
        wait: list[Output] = [] if duplex else [Extend(timeout_ms)]
        return [*wait, Prefill(self._request.headers, bytes(self._whole()))]

    def decided(self, routing: Mutation, body: bytes | None = None) -> list[Output]:
        """The answers that send the request, with another `body` if one is given, to where `routing` says."""
        self._leave_deciding(State.ROUTED)
        duplex = self._request_mode is BodyMode.FULL_DUPLEX_STREAMED and self._answer_due is Phase.REQUEST_HEADERS
        routing, body = self._fitted(routing, body)
        override = self._override(BodyMode.NONE, BodyMode.NONE) if self._unwanted else None
        # Envoy would wait for the end of a body that never ends. Without us it goes on at once.
        ignored = override is None or self._gateway.overrides is False
        self.over = self._unwanted and ignored and self._request_mode is not BodyMode.STREAMED
        outputs: list[Output] = [Continue(self._answer_due, routing, None if duplex else body, override)]
        if duplex:
            outputs = outputs if self._headers_seen else []
            end = not (self._trailers or self._streaming)
            whole = self._whole() if body is None else body
            if self._body:
                outputs += _chunks(Phase.REQUEST_BODY, whole, end_of_stream=end)
            if self._trailers:
                outputs.append(Continue(Phase.REQUEST_TRAILERS))
        self.close()
        return outputs

    def _fitted(self, routing: Mutation, body: bytes | None) -> tuple[Mutation, bytes | None]:
        """What the request has room for; a body whose length cannot be told stays as it is."""
        if body is not None:
            # Envoy does not correct the length by itself: it would answer 500.
            routing = replace(routing, set_headers={**routing.set_headers, CONTENT_LENGTH: str(len(body))})
        request = self._request
        extent = Extent(request.lines, request.size)
        routing, self.left_out = header_limits.fit(routing, request.headers, extent, self._gateway)
        return routing, None if CONTENT_LENGTH in self.left_out else body

    def refused(self, error: ExtProcError, routing: Mutation) -> list[Output]:
        """The answer that tells the client, in OpenAI's form, why nobody can serve the request."""
        self._leave_deciding(State.ANSWERED)
        self.close()
        kind = HTTPStatus(error.status).name.lower()
        message = {"message": str(error), "type": kind, "param": None, "code": error.slug}
        headers = {} if error.retry_after_s is None else {"retry-after": str(error.retry_after_s)}
        return [Immediate(error.status, json.dumps({"error": message}).encode(), routing, headers)]

    def close(self) -> None:
        """Hold nothing of the body any more: it was sent on, or the stream ended, however it did."""
        self._body.clear()
        self._budget.give_back(self._taken)
        self._taken = 0

    def _whole(self) -> bytes | memoryview:
        """The body that has come, joined at most once: a large one is many milliseconds."""
        if len(self._body) > 1:
            self._body = [b"".join(self._body)]
        return self._body[0] if self._body else b""  # none has come: no piece of it may be sent on either

    def _leave_deciding(self, state: State) -> None:
        if self.state is not State.DECIDING:
            raise ProtocolViolation(f"a decision while {self.state.value}")
        self.state = state

    def _decide(
        self, answer_due: Phase, body: bytes | memoryview | None, degraded: Reason | None = None
    ) -> list[Output]:
        self.state = State.DECIDING
        self._answer_due = answer_due
        return [Decide(self._request.headers, body, degraded, self._subset)]

    # Rows of the table

    def _open(self, event: RequestHeaders) -> list[Output]:
        self._request, self._subset = event, event.subset
        self._request_mode, self._response_mode = event.request_body_mode, event.response_body_mode
        if event.end_of_stream:
            self._request_mode = BodyMode.NONE  # nothing to give back, whatever the mode
            return self._decide(Phase.REQUEST_HEADERS, None, Reason.NO_BODY)
        tunnel = _tunnel(event.headers)
        endless = tunnel or event.headers.get("content-type", "").startswith(_GRPC)
        if endless or self._request_mode in (BodyMode.NONE, BodyMode.STREAMED):
            duplex = self._request_mode is BodyMode.FULL_DUPLEX_STREAMED
            self._streaming, self._unwanted = duplex, endless and self._request_mode in _HELD_BACK
            # Envoy 1.39 holds tunnels over HTTP/2 back in duplex mode too.
            self._doubted = (duplex and tunnel) or (self._unwanted and self._gateway.overrides is not True)
            return self._decide(Phase.REQUEST_HEADERS, None, Reason.BODY_NOT_SENT)
        self.state = State.RECEIVING
        return [] if self._request_mode is BodyMode.FULL_DUPLEX_STREAMED else [Continue(Phase.REQUEST_HEADERS)]

    def _open_at_body(self, event: RequestBody) -> list[Output]:
        """The operator set `request_header_mode: SKIP`: without a path the body cannot be read."""
        self._learn(event.modes)
        self.state, self._headers_seen = State.RECEIVING, False
        return self._collect(event)

    def _learn(self, modes: Modes | None) -> None:
        """The body modes, where it is not the request's headers that open the stream."""
        if modes is not None:
            self._request_mode, self._response_mode = modes

    def _collect(self, event: RequestBody) -> list[Output]:
        self._body.append(event.data)
        self._subset = event.subset if self._subset is None else self._subset
        if self._request_mode is BodyMode.FULL_DUPLEX_STREAMED:
            return self._collect_streamed(event)
        # Whatever end_of_stream says: it is false where trailers follow a BUFFERED body, and those we may never see.
        return self._decide(Phase.REQUEST_BODY, self._whole())

    def _collect_streamed(self, event: RequestBody) -> list[Output]:
        self._size += len(event.data)
        if self._size > self._max_body or not self._budget.take(len(event.data)):
            self._streaming = not event.end_of_stream
            return self._decide(Phase.REQUEST_HEADERS, None, Reason.BODY_TOO_LARGE)
        self._taken += len(event.data)
        return self._decide(Phase.REQUEST_HEADERS, self._whole()) if event.end_of_stream else []

    def _collect_trailers(self, _: RequestTrailers) -> list[Output]:
        self._trailers = True
        duplex = self._request_mode is BodyMode.FULL_DUPLEX_STREAMED
        body = self._whole()
        return self._decide(Phase.REQUEST_HEADERS if duplex else Phase.REQUEST_TRAILERS, body)

    def _give_up(self, _: OutOfTime) -> list[Output]:
        self.over = True
        return self._decide(Phase.REQUEST_HEADERS, None, Reason.BODY_TIMEOUT)

    def _repeat_streamed(self, event: RequestBody) -> list[Output]:
        """A body after the decision: more of it where it streams, elsewhere Envoy's duplicate of the last chunk."""
        if self._streaming:
            self._streaming = not event.end_of_stream
            return list(_chunks(Phase.REQUEST_BODY, event.data, end_of_stream=event.end_of_stream))
        streamed = self._request_mode in (BodyMode.STREAMED, BodyMode.UNKNOWN)
        shown, self._unwanted, self._doubted = self._unwanted, False, False  # against our wish, and whole
        return [Continue(Phase.REQUEST_BODY)] if streamed or shown else []

    def _leave(self, _: OutOfTime) -> list[Output]:
        """No answer to a request that we may be keeping: Envoy goes on without us, whatever it waited for."""
        self.over = True
        return []

    def _pass_request_trailers(self, _: RequestTrailers) -> list[Output]:
        self._streaming = False
        return [Continue(Phase.REQUEST_TRAILERS)]

    def _respond(self, event: ResponseHeaders) -> list[Output]:
        self._learn(event.modes)  # where a filter before ours has answered, or Envoy itself
        counted, self.state = self.state is State.ROUTED, State.RESPONDING
        status = event.headers.get(":status", "")
        told = None
        if self._served_header is not None:
            told = Mutation(set_headers={self._served_header: event.served or "not reported by the gateway"})
            told, _ = header_limits.fit(told, event.headers, header_limits.extent_of(event.headers), self._gateway)
        self.watching = self.watching and status.startswith("2") and not event.end_of_stream
        hidden = self._response_mode in (BodyMode.NONE, BodyMode.UNKNOWN)
        request = BodyMode.NONE if self._unwanted else self._request_mode
        shown = BodyMode.STREAMED if self.watching else BodyMode.NONE
        override = self._override(request, shown) if counted and hidden and not event.end_of_stream else None
        events = event.headers.get("content-type", "").startswith(_EVENT_STREAM) and not event.end_of_stream
        self.unended = events and self._request_mode in _CLOSED_EARLY
        return [Prefilled(status, event.served), Continue(Phase.RESPONSE_HEADERS, told, override=override)]

    def _override(self, request: BodyMode, response: BodyMode) -> Override | None:
        """The wish for these bodies and for the response's end; None where Envoy never listens."""
        if BodyMode.FULL_DUPLEX_STREAMED in (self._request_mode, self._response_mode):
            return None
        return Override(
            BodyMode.BUFFERED if request is BodyMode.UNKNOWN else request,
            BodyMode.NONE if response is BodyMode.UNKNOWN else response,
        )

    def _pass_response_body(self, event: ResponseBody) -> list[Output]:
        self._learn(event.modes)
        self.state = State.RESPONDING
        self.unended = self.unended and not event.end_of_stream
        seen: list[Output] = [Seen(event.data)] if self.watching else []
        if self._response_mode is BodyMode.FULL_DUPLEX_STREAMED:
            return [*seen, *_chunks(Phase.RESPONSE_BODY, event.data, end_of_stream=event.end_of_stream)]
        return [*seen, Continue(Phase.RESPONSE_BODY)]

    def _pass_response_trailers(self, _: ResponseTrailers) -> list[Output]:
        self.state = State.RESPONDING
        self.unended = False
        return [Continue(Phase.RESPONSE_TRAILERS)]

    def _ignore(self, _: Event) -> list[Output]:
        return []

    # Order is data: a message that has no row in a state does not exist there. DECIDING has none: the caller decides
    # first. A response may come before a decision (an Envoy that refuses a body over its limit answers by itself), and
    # a request's last messages may come after its response began. Headers that an operator skips do not come at all.
    TRANSITIONS: ClassVar[Mapping[tuple[State, type[Event]], Callable[..., list[Output]]]] = {
        (State.OPENING, RequestHeaders): _open,
        (State.OPENING, RequestBody): _open_at_body,
        (State.OPENING, ResponseHeaders): _respond,
        (State.OPENING, ResponseBody): _pass_response_body,
        (State.OPENING, ResponseTrailers): _pass_response_trailers,
        (State.RECEIVING, RequestBody): _collect,
        (State.RECEIVING, RequestTrailers): _collect_trailers,
        (State.RECEIVING, OutOfTime): _give_up,
        (State.RECEIVING, ResponseHeaders): _respond,
        (State.RECEIVING, ResponseBody): _pass_response_body,
        (State.RECEIVING, ResponseTrailers): _pass_response_trailers,
        (State.ROUTED, RequestBody): _repeat_streamed,
        (State.ROUTED, RequestTrailers): _pass_request_trailers,
        (State.ROUTED, OutOfTime): _leave,
        (State.ROUTED, ResponseHeaders): _respond,
        (State.ROUTED, ResponseBody): _pass_response_body,
        (State.ROUTED, ResponseTrailers): _pass_response_trailers,
        (State.RESPONDING, RequestBody): _repeat_streamed,
        (State.RESPONDING, RequestTrailers): _pass_request_trailers,
        (State.RESPONDING, ResponseBody): _pass_response_body,
        (State.RESPONDING, ResponseTrailers): _pass_response_trailers,
        (State.ANSWERED, RequestBody): _ignore,
        (State.ANSWERED, RequestTrailers): _ignore,
    }


def _tunnel(headers: Mapping[str, str]) -> bool:
    """Whether the request's body ends only with the reply: a WebSocket, CONNECT. Envoy shows HTTP/2's as upgrades."""
    return "upgrade" in headers or ":protocol" in headers or headers.get(":method") == "CONNECT"


def _chunks(phase: Phase, body: bytes | memoryview, *, end_of_stream: bool) -> Iterator[Streamed]:
    """The body in pieces that Envoy takes, `end_of_stream` on the last one only; an empty body is one empty piece."""
    starts = range(0, max(len(body), 1), CHUNK)
    for start in starts:
        yield Streamed(phase, bytes(body[start : start + CHUNK]), end_of_stream and start == starts[-1])
