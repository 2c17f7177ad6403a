"""A body that is taken out of a message is the one that protobuf's own parser finds, and the rest of it stays."""

from __future__ import annotations

import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest

from extproc.base.headers import SUBSET, SUBSET_NAMESPACE
from extproc.processor import large_body, wire
from extproc.processor.messages import RequestBody
from tests.support.ext_proc_client import body, headers

LARGE = bytes(range(256)) * 4096


def full() -> ProcessingRequest:
    """A message with all that Envoy may send beside a body."""
    message = body(LARGE)
    message.metadata_context.filter_metadata[SUBSET_NAMESPACE].update({SUBSET: "10.0.0.1:8000"})
    message.protocol_config.request_body_mode = 4
    message.attributes["envoy.filters.http.ext_proc"].update({"upstream.address": "10.0.0.2:8000"})
    return message


@pytest.mark.parametrize("message", [body(LARGE), full()], ids=["a body", "with all else"])
def test_nothing_is_lost(message: ProcessingRequest) -> None:
    """Not a byte of the body, and no other field, wherever it stands."""
    taken = large_body.taken_out(message.SerializeToString())
    assert taken is not None
    assert taken.body == LARGE
    rest = ProcessingRequest.FromString(taken.rest)
    assert rest.request_body.end_of_stream
    rest.request_body.body = LARGE
    assert rest == message


def test_a_large_body_is_decoded_as_a_small_one() -> None:
    """The event is the same, but that its body is a view."""
    read = wire.decode(full().SerializeToString())
    assert isinstance(read, RequestBody)
    assert isinstance(read.data, memoryview)
    assert bytes(read.data) == LARGE
    assert read.end_of_stream
    assert read.subset is not None
    assert read.modes is not None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 40,
        headers().SerializeToString(),
        body(b"").SerializeToString(),
        body(LARGE).SerializeToString() * 2,
        body(LARGE).SerializeToString()[:-10],
        b"\x22\xff\xff\xff\xff\xff\xff\xff\xff\x7f" + LARGE,
        b"\x23" + LARGE,
        b"\x08\x01" * 1000,
    ],
    ids=["nothing", "noise", "headers", "no body", "two", "cut off", "a length beyond it", "a group", "many fields"],
)
def test_what_is_unusual_is_left_to_protobuf(data: bytes) -> None:
    """It refuses it or knows better; this module never raises."""
    assert large_body.taken_out(data) is None
