"""What one ext_proc stream consists of, free of protobuf: Envoy's messages in, and what the exchange wants done.

`exchange.py` owns their order, `wire.py` how they look on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from extproc.base.model import Reason
from extproc.routing.pools.admission import Subset


class BodyMode(Enum):
    """How Envoy sends a body (`protocol_config`). UNKNOWN: an Envoy too old to say; taken for BUFFERED."""

    UNKNOWN = "UNKNOWN"
    NONE = "NONE"
    STREAMED = "STREAMED"
    BUFFERED = "BUFFERED"
    BUFFERED_PARTIAL = "BUFFERED_PARTIAL"
    FULL_DUPLEX_STREAMED = "FULL_DUPLEX_STREAMED"


class Modes(NamedTuple):
    """The body modes of both directions, which Envoy tells with the first message of a stream, whatever that is."""

    request: BodyMode = BodyMode.UNKNOWN
    response: BodyMode = BodyMode.UNKNOWN


# Envoy's messages


@dataclass(frozen=True, slots=True)
class RequestHeaders:
    """The first message of a stream. `headers` has lower-case names; repeated headers are joined by commas."""

    headers: Mapping[str, str]
    end_of_stream: bool = False
    request_body_mode: BodyMode = BodyMode.UNKNOWN
    response_body_mode: BodyMode = BodyMode.UNKNOWN
    subset: Subset | None = None  # the gateway's hint: choose among these; None where there is no hint
    lines: int = 0  # of headers, each repetition counted, as Envoy's limit does
    size: int = 0  # bytes of names and values


@dataclass(frozen=True, slots=True)
class RequestBody:
    """A piece of the request body, or all of it; a large one is a view of Envoy's message, since a copy takes long."""

    data: bytes | memoryview
    end_of_stream: bool
    subset: Subset | None = None  # as in RequestHeaders: Envoy repeats it, and headers may not be sent
    modes: Modes | None = None


@dataclass(frozen=True, slots=True)
class RequestTrailers:
    """The end of a request that has trailers."""


@dataclass(frozen=True, slots=True)
class ResponseHeaders:
    """The engine has answered. `served` is the "ip:port" that Envoy reached, None where Envoy does not say."""

    headers: Mapping[str, str]
    end_of_stream: bool = False
    served: str | None = None
    modes: Modes | None = None


@dataclass(frozen=True, slots=True)
class ResponseBody:
    """A piece of the response body; only where an operator asks Envoy to send it."""

    data: bytes
    end_of_stream: bool
    modes: Modes | None = None


@dataclass(frozen=True, slots=True)
class ResponseTrailers:
    """The end of a response that has trailers."""


@dataclass(frozen=True, slots=True)
class OutOfTime:
    """No message of Envoy's: the caller waited long enough for the next one."""


Event = RequestHeaders | RequestBody | RequestTrailers | ResponseHeaders | ResponseBody | ResponseTrailers | OutOfTime


# Outputs


@dataclass(frozen=True, slots=True)
class Mutation:
    """What a decision changes: request headers to set and to remove, and dynamic metadata by namespace.

    `new_route` makes Envoy choose the route again, by the headers as they are then.
    """

    set_headers: Mapping[str, str] = field(default_factory=dict)
    remove_headers: tuple[str, ...] = ()
    metadata: Mapping[str, Mapping[str, str | float]] = field(default_factory=dict)
    new_route: bool = False


@dataclass(frozen=True, slots=True)
class Decide:
    """A destination is needed. `body` is None where none can be had, and then `degraded` says why."""

    headers: Mapping[str, str]
    body: bytes | memoryview | None
    degraded: Reason | None = None
    subset: Subset | None = None


@dataclass(frozen=True, slots=True)
class Prefill:
    """The prompt shall be computed elsewhere before the request goes on (disaggregation in `filter` mode)."""

    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The engine has answered with this status: prefill is over. `served` as in ResponseHeaders."""

    status: str
    served: str | None


@dataclass(frozen=True, slots=True)
class Seen:
    """A piece of the response, as long as the exchange is `watching`."""

    data: bytes


class Phase(Enum):
    """Which message an answer answers."""

    REQUEST_HEADERS = "request_headers"
    REQUEST_BODY = "request_body"
    REQUEST_TRAILERS = "request_trailers"
    RESPONSE_HEADERS = "response_headers"
    RESPONSE_BODY = "response_body"
    RESPONSE_TRAILERS = "response_trailers"


@dataclass(frozen=True, slots=True)
class Override:
    """Another processing mode for the rest of the exchange: these bodies, and the end of the response (its trailers).

    Envoy obeys where the operator writes allow_mode_override, and never where a body is FULL_DUPLEX_STREAMED. Elsewhere
    it takes no notice, and does not say so.
    """

    request_body: BodyMode
    response_body: BodyMode


@dataclass(frozen=True, slots=True)
class Continue:
    """Let the message pass; `routing` says what the decision changes on it, `body` replaces the request's."""

    phase: Phase
    routing: Mutation | None = None
    body: bytes | None = None
    override: Override | None = None


@dataclass(frozen=True, slots=True)
class Streamed:
    """A piece of body given back to Envoy, which forgets whatever is not (FULL_DUPLEX_STREAMED)."""

    phase: Phase
    data: bytes
    end_of_stream: bool


@dataclass(frozen=True, slots=True)
class Extend:
    """Ask Envoy to wait longer for the answer that is due; it grants at most its `max_message_timeout`."""

    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Immediate:
    """Answer the client ourselves."""

    status: int
    body: bytes
    routing: Mutation
    headers: Mapping[str, str] = field(default_factory=dict)


Answer = Continue | Streamed | Extend | Immediate
Output = Decide | Prefill | Prefilled | Seen | Answer
