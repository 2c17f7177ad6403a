"""Our messages against Envoy's own protobuf types."""

from __future__ import annotations

import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse
from google.protobuf import json_format

from extproc.processor import wire
from extproc.processor.messages import (
    BodyMode,
    Continue,
    Extend,
    Immediate,
    Modes,
    Mutation,
    Override,
    Phase,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    Streamed,
)


def request(message: dict[str, object]) -> bytes:
    """A ProcessingRequest from its JSON form."""
    encoded: bytes = json_format.ParseDict(message, ProcessingRequest()).SerializeToString()
    return encoded


def response(data: bytes) -> dict[str, object]:
    """A ProcessingResponse as its JSON form."""
    message: dict[str, object] = json_format.MessageToDict(
        ProcessingResponse.FromString(data), preserving_proto_field_name=True
    )
    return message


def headers(*pairs: tuple[str, str]) -> dict[str, object]:
    return {"headers": {"headers": [{"key": key, "value": value} for key, value in pairs]}}


def test_headers_come_with_the_body_modes() -> None:
    """Names, values (raw or not, repeated or not) and the modes of protocol_config arrive."""
    message = {
        "request_headers": {
            "headers": {
                "headers": [
                    {"key": ":path", "raw_value": "L3Y="},
                    {"key": "a", "value": "1"},
                    {"key": "a", "value": "2"},
                ]
            }
        },
        "protocol_config": {"request_body_mode": "FULL_DUPLEX_STREAMED", "response_body_mode": "STREAMED"},
    }
    assert wire.decode(request(message)) == RequestHeaders(
        {":path": "/v", "a": "1,2"}, False, BodyMode.FULL_DUPLEX_STREAMED, BodyMode.STREAMED, lines=3, size=11
    )


def test_an_answer_may_open_a_stream() -> None:
    """Where a filter before ours answers, the response's headers tell the mode."""
    message = {
        "response_headers": {"headers": {"headers": [{"key": ":status", "value": "403"}]}},
        "protocol_config": {"response_body_mode": "FULL_DUPLEX_STREAMED"},
    }
    opened = ResponseHeaders({":status": "403"}, modes=Modes(BodyMode.NONE, BodyMode.FULL_DUPLEX_STREAMED))
    assert wire.decode(request(message)) == opened


def test_an_old_envoy_says_no_mode() -> None:
    """Without protocol_config both modes are unknown."""
    decoded = wire.decode(request({"request_headers": {"end_of_stream": True}}))
    assert decoded == RequestHeaders({}, True, BodyMode.UNKNOWN, BodyMode.UNKNOWN)


@pytest.mark.parametrize(
    ("message", "event"),
    [
        ({"request_body": {"body": "aGk=", "end_of_stream": True}}, RequestBody(b"hi", True)),
        ({"request_trailers": {}}, RequestTrailers()),
        ({"response_headers": headers((":status", "200"))}, ResponseHeaders({":status": "200"})),
        ({"response_body": {"body": "aGk="}}, ResponseBody(b"hi", False)),
        ({"response_trailers": {}}, ResponseTrailers()),
    ],
)
def test_every_message_of_envoy_is_known(message: dict[str, object], event: object) -> None:
    """Each kind of ProcessingRequest is one event."""
    assert wire.decode(request(message)) == event


@pytest.mark.parametrize(
    "source",
    [
        {"metadata_context": {"filter_metadata": {"envoy.lb": {"x-gateway-destination-endpoint-served": "1.2.3.4:5"}}}},
        {"attributes": {"envoy.filters.http.ext_proc": {"upstream.address": "1.2.3.4:5"}}},
    ],
)
def test_the_served_endpoint_is_read_where_envoy_says_it(source: dict[str, object]) -> None:
    """The Endpoint Picker Protocol's metadata and Envoy's own attribute both name the host that answered."""
    event = wire.decode(request({"response_headers": headers((":status", "200")), **source}))
    assert event == ResponseHeaders({":status": "200"}, False, "1.2.3.4:5")


def test_bytes_that_are_no_message_raise() -> None:
    """An empty message or garbage is an error of the peer."""
    with pytest.raises(ValueError, match="without a known message"):
        wire.decode(b"")


def test_a_routing_sets_headers_and_metadata() -> None:
    """Headers are overwritten by raw_value alone, removed where asked; metadata goes out by namespace."""
    routing = Mutation({"to": "a:1"}, ("gone",), {"envoy.lb": {"to": "a:1"}, "smetric": {"turn": 3}})
    assert response(wire.encode(Continue(Phase.REQUEST_BODY, routing))) == {
        "request_body": {
            "response": {
                "header_mutation": {
                    "set_headers": [
                        {
                            "header": {"key": "to", "raw_value": "YTox"},
                            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
                        }
                    ],
                    "remove_headers": ["gone"],
                }
            }
        },
        "dynamic_metadata": {"envoy.lb": {"to": "a:1"}, "smetric": {"turn": 3.0}},
    }


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_can_be_passed(phase: Phase) -> None:
    """An answer without changes is the empty message of its phase."""
    assert list(response(wire.encode(Continue(phase)))) == [phase.value]


def test_on_trailers_only_metadata_can_steer() -> None:
    """A destination that is due at the trailers cannot set headers any more."""
    routing = Mutation({"to": "a:1"}, (), {"envoy.lb": {"to": "a:1"}})
    assert response(wire.encode(Continue(Phase.REQUEST_TRAILERS, routing))) == {
        "request_trailers": {},
        "dynamic_metadata": {"envoy.lb": {"to": "a:1"}},
    }


def test_a_changed_body() -> None:
    """The whole of it replaces the client's, beside the headers of the decision."""
    encoded = response(wire.encode(Continue(Phase.REQUEST_BODY, Mutation(), b"new")))
    assert encoded == {"request_body": {"response": {"body_mutation": {"body": "bmV3"}}}}


def test_more_time() -> None:
    """A message of its own: it answers nothing, and only moves Envoy's timer."""
    assert response(wire.encode(Extend(121_000))) == {"override_message_timeout": "121s"}


def test_a_streamed_piece() -> None:
    """Bytes and end_of_stream go into a streamed_response."""
    assert response(wire.encode(Streamed(Phase.REQUEST_BODY, b"hi", True))) == {
        "request_body": {"response": {"body_mutation": {"streamed_response": {"body": "aGk=", "end_of_stream": True}}}}
    }


def test_an_immediate_answer_is_json() -> None:
    """Status, body and content type reach the client."""
    encoded = response(wire.encode(Immediate(503, b"{}", Mutation(metadata={"smetric": {"reason": "no_instance"}}))))
    immediate = encoded["immediate_response"]
    assert isinstance(immediate, dict)
    assert immediate["status"] == {"code": "ServiceUnavailable"}
    assert immediate["body"] == "e30="
    assert immediate["headers"]["set_headers"][0]["header"] == {
        "key": "content-type",
        "raw_value": "YXBwbGljYXRpb24vanNvbg==",
    }
    assert encoded["dynamic_metadata"] == {"smetric": {"reason": "no_instance"}}


def test_another_mode_for_the_rest_of_the_exchange() -> None:
    """Envoy reads all modes of it: those that are not ours to change are said again."""
    override = Override(BodyMode.BUFFERED, BodyMode.STREAMED)
    assert response(wire.encode(Continue(Phase.RESPONSE_HEADERS, override=override)))["mode_override"] == {
        "request_body_mode": "BUFFERED",
        "response_header_mode": "SEND",
        "response_body_mode": "STREAMED",
        "response_trailer_mode": "SEND",
    }
    assert "mode_override" not in response(wire.encode(Continue(Phase.RESPONSE_HEADERS)))


def test_no_mutation_is_no_empty_one() -> None:
    """Envoy holds the headers of a request to its limits again where there is a mutation, an empty one too."""
    steered = response(wire.encode(Continue(Phase.REQUEST_HEADERS, Mutation(metadata={"envoy.lb": {"a": "b"}}))))
    assert steered["dynamic_metadata"] == {"envoy.lb": {"a": "b"}}
    assert "header_mutation" not in steered["request_headers"].get("response", {})
