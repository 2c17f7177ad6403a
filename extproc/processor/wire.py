"""Envoy's ext_proc messages as protobuf: bytes to `messages`, and answers to bytes.

The only file that knows protobuf. It uses xds-protos (Google's C implementation, 10 us for a 400 KB body), which has no
type stubs; nothing of it leaves this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from google.protobuf.message import DecodeError

from extproc.base.headers import NAMESPACE, SERVED, SUBSET, SUBSET_NAMESPACE
from extproc.processor import large_body, messages
from extproc.processor.messages import (
    Answer,
    BodyMode,
    Continue,
    Event,
    Extend,
    Immediate,
    Modes,
    Mutation,
    Override,
    Phase,
    Streamed,
)
from extproc.routing.pools.admission import Subset

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
METHOD = "Process"

_UPSTREAM = "upstream.address"  # Envoy attribute; sent where `response_attributes` asks for it

_SEND = 1  # a ProcessingMode.HeaderSendMode
_MODES = {
    0: BodyMode.NONE,
    1: BodyMode.STREAMED,
    2: BodyMode.BUFFERED,
    3: BodyMode.BUFFERED_PARTIAL,
    4: BodyMode.FULL_DUPLEX_STREAMED,
}
_NUMBERS = {mode: number for number, mode in _MODES.items()}


class NoMessage(ValueError):
    """Whoever sent this is no Envoy, or one of a time that we do not know."""


def decode(data: bytes) -> Event:
    """One ProcessingRequest. Raises NoMessage on bytes that are none."""
    large = large_body.taken_out(data) if len(data) > large_body.LEAST_BYTES else None
    try:
        message = ProcessingRequest.FromString(data if large is None else large.rest)
    except DecodeError as error:
        raise NoMessage("bytes that are no ProcessingRequest") from error
    kind = message.WhichOneof("request")
    if kind == "request_headers":
        return messages.RequestHeaders(
            _headers(message.request_headers),
            message.request_headers.end_of_stream,
            *(_modes(message) or Modes()),
            _subset(message),
            *_extent(message.request_headers),
        )
    if kind == "request_body":
        body = message.request_body
        read = body.body if large is None else large.body
        return messages.RequestBody(read, body.end_of_stream, _subset(message), _modes(message))
    if kind == "request_trailers":
        return messages.RequestTrailers()
    if kind == "response_headers":
        headers = message.response_headers
        return messages.ResponseHeaders(_headers(headers), headers.end_of_stream, _served(message), _modes(message))
    if kind == "response_body":
        return messages.ResponseBody(message.response_body.body, message.response_body.end_of_stream, _modes(message))
    if kind == "response_trailers":
        return messages.ResponseTrailers()
    raise NoMessage(f"a ProcessingRequest without a known message: {kind}")


def encode(answer: Answer) -> bytes:
    """One ProcessingResponse."""
    response = ProcessingResponse()
    match answer:
        case Immediate(status, body, routing, headers):
            response.immediate_response.status.code = status
            response.immediate_response.body = body
            for name, value in {"content-type": "application/json", **headers}.items():
                _set_header(response.immediate_response.headers, name, value)
            _set_metadata(response, routing.metadata)
        case Streamed(phase, data, end_of_stream):
            mutation = getattr(response, phase.value).response.body_mutation.streamed_response
            mutation.body = data
            mutation.end_of_stream = end_of_stream
        case Extend(timeout_ms):
            response.override_message_timeout.FromMilliseconds(timeout_ms)
        case Continue(phase, routing, body, override):
            target = getattr(response, phase.value)
            target.SetInParent()
            if body is not None:
                target.response.body_mutation.body = body
            if override is not None:
                _set_override(response.mode_override, override)
            if routing is not None:
                _set_routing(response, phase, routing)
    encoded: bytes = response.SerializeToString()
    return encoded


def _modes(message: Any) -> Modes | None:
    """The body modes, which the first message of a stream tells."""
    if not message.HasField("protocol_config"):
        return None
    config = message.protocol_config
    return Modes(*(_MODES.get(mode, BodyMode.NONE) for mode in (config.request_body_mode, config.response_body_mode)))


def _headers(message: Any) -> Mapping[str, str]:
    joined: dict[str, str] = {}
    for header in message.headers.headers:
        value = header.value or header.raw_value.decode("utf-8", "replace")
        joined[header.key] = f"{joined[header.key]},{value}" if header.key in joined else value
    return joined


def _extent(message: Any) -> tuple[int, int]:
    """Lines and bytes of all headers, as Envoy counts them."""
    headers = message.headers.headers
    return len(headers), sum(len(header.key) + len(header.raw_value or header.value.encode()) for header in headers)


def _served(message: Any) -> str | None:
    metadata = message.metadata_context.filter_metadata
    if NAMESPACE in metadata and SERVED in metadata[NAMESPACE].fields:
        return str(metadata[NAMESPACE].fields[SERVED].string_value) or None
    for attributes in message.attributes.values():
        if _UPSTREAM in attributes.fields:
            return str(attributes.fields[_UPSTREAM].string_value) or None
    return None


def _subset(message: Any) -> Subset | None:
    """The gateway's hint: a list of endpoints, or one string of them. Null is no hint; anything else admits nobody."""
    metadata = message.metadata_context.filter_metadata
    if SUBSET_NAMESPACE not in metadata or SUBSET not in metadata[SUBSET_NAMESPACE].fields:
        return None
    hint = metadata[SUBSET_NAMESPACE].fields[SUBSET]
    if hint.WhichOneof("kind") == "null_value":
        return None
    return Subset([hint.string_value, *(value.string_value for value in hint.list_value.values)])


def _set_override(mode: Any, override: Override) -> None:
    mode.request_body_mode = _NUMBERS[override.request_body]
    mode.response_header_mode = _SEND
    mode.response_body_mode = _NUMBERS[override.response_body]
    mode.response_trailer_mode = _SEND


def _set_routing(response: Any, phase: Phase, routing: Mutation) -> None:
    _set_metadata(response, routing.metadata)
    if phase is Phase.REQUEST_TRAILERS:
        return  # headers are gone by then; the dynamic metadata still steers
    common = getattr(response, phase.value).response
    common.clear_route_cache = routing.new_route
    if not (routing.set_headers or routing.remove_headers):
        return  # to Envoy an empty mutation is one, and it holds the headers to its limits again
    mutation = common.header_mutation
    mutation.remove_headers.extend(routing.remove_headers)
    for name, value in routing.set_headers.items():
        _set_header(mutation, name, value)


def _set_header(mutation: Any, name: str, value: str) -> None:
    option = mutation.set_headers.add()
    option.header.key = name
    option.header.raw_value = value.encode()  # Envoy refuses a header that has both value and raw_value
    option.append_action = 2  # OVERWRITE_IF_EXISTS_OR_ADD: a client's own value never survives


def _set_metadata(response: Any, metadata: Mapping[str, Mapping[str, str | float]]) -> None:
    for namespace, fields in metadata.items():
        response.dynamic_metadata.get_or_create_struct(namespace).update(fields)
