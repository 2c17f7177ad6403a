"""The Endpoint Picker Protocol up to the forwarded request, in every body mode, over plaintext and TLS."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import grpc
import pytest

from extproc.base.headers import DESTINATION
from extproc.base.model import Reason
from extproc.processor import stream
from extproc.routing.pools.ejections import EJECTION_S
from tests.epp.conftest import ADDRESSES, Picker, StartPicker
from tests.epp.gateway import BLIND, DUPLEX, MAX_CHUNK, NULL, chat

SIX = ("[fd00::1]:8000", "[fd00::2]:8000")


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


async def test_the_destination_is_in_header_and_metadata_alike(picker: Picker, mode: str) -> None:
    """Both channels carry one list of ip:port: the choice first, then the fallbacks for Envoy's retries."""
    gateway = picker.gateway(mode)
    outcome = await gateway.request(chat())
    assert outcome.destinations == list(ADDRESSES)
    assert outcome.set_headers[DESTINATION] == ",".join(outcome.destinations)
    assert outcome.reason == ("body_not_sent" if mode in BLIND else "first_turn")
    await gateway.end()


@pytest.mark.parametrize("size", [1, 7, 60])
async def test_a_body_in_pieces_arrives_whole(picker: Picker, mode: str, size: int) -> None:
    """However a client cuts its body, the engine gets every byte, and the decision is made of the whole."""
    body = chat("split " * 20)
    gateway = picker.gateway(mode)
    outcome = await gateway.request(*cut(body, size))
    assert (outcome.body, outcome.ended) == (body, True)
    assert outcome.reason == ("body_not_sent" if mode in BLIND else "first_turn")
    await gateway.end()


@pytest.mark.parametrize("size", [MAX_CHUNK, MAX_CHUNK + 1, 65_536, 1_000_000])
async def test_no_chunk_is_larger_than_envoy_takes(picker: Picker, size: int) -> None:
    """A body given back is cut to at most 62,000 bytes, and end_of_stream comes exactly once (the gateway asserts)."""
    body = chat()
    body += b" " * (size - len(body))
    for pieces in ([body], cut(body, 16_384)):
        gateway = picker.gateway(DUPLEX)
        outcome = await gateway.request(*pieces)
        assert (outcome.body, outcome.ended, outcome.reason) == (body, True, "first_turn")
        await gateway.end()


async def test_trailers_end_a_body(picker: Picker, mode: str) -> None:
    """A body before trailers never says end_of_stream; it is decided on and passed on, the trailers last."""
    gateway = picker.gateway(mode)
    body = chat()
    outcome = await gateway.request(*cut(body, 10), trailers=True)
    assert (outcome.body, outcome.trailers, outcome.ended) == (body, True, False)
    assert outcome.destinations == list(ADDRESSES)
    assert outcome.reason == ("body_not_sent" if mode in BLIND else "first_turn")
    await gateway.end()


async def test_a_request_of_headers_alone_is_routed(picker: Picker, mode: str) -> None:
    """GET /v1/models has no body: its headers' answer carries the destination, and no body is invented."""
    gateway = picker.gateway(mode)
    outcome = await gateway.request(path="/v1/models")
    assert (outcome.destinations, outcome.reason, outcome.body) == (list(ADDRESSES), "no_body", b"")
    await gateway.end()


async def test_an_empty_body_is_routed(picker: Picker, mode: str) -> None:
    """A POST whose body turns out to be empty ends like any other."""
    gateway = picker.gateway(mode)
    outcome = await gateway.request(b"")
    assert (outcome.body, outcome.ended, len(outcome.destinations)) == (b"", True, 3)
    await gateway.end()


@pytest.mark.parametrize("body", [b"{", b"not JSON", b"\xff\xfe", b'{"messages": 5}', b"[" * 5_000 + b"]" * 5_000])
async def test_a_body_that_is_no_json_goes_to_an_engine(picker: Picker, mode: str, body: bytes) -> None:
    """The engine judges it, and gets it as it came; load alone chooses, and the reason says so."""
    gateway = picker.gateway(mode)
    outcome = await gateway.request(*cut(body, 3_000))
    assert (outcome.body, outcome.status, len(outcome.destinations)) == (body, None, 3)
    assert outcome.reason == ("body_not_sent" if mode in BLIND else "unreadable_body")
    await gateway.end()


async def test_a_clients_own_destination_does_not_count(picker: Picker, mode: str) -> None:
    """The header is overwritten (the gateway asserts how), not added to."""
    gateway = picker.gateway(mode)
    outcome = await gateway.request(chat(), headers={DESTINATION: "6.6.6.6:6"})
    assert outcome.set_headers[DESTINATION] == ",".join(ADDRESSES)
    await gateway.end()


@pytest.mark.parametrize(
    ("hint", "allowed"),
    [
        (["10.0.0.2:8000"], {"10.0.0.2:8000"}),
        (["10.0.0.2:8000", "10.0.0.3:8000"], {"10.0.0.2:8000", "10.0.0.3:8000"}),
        ("10.0.0.2:8000, 10.0.0.3:8000", {"10.0.0.2:8000", "10.0.0.3:8000"}),
        (["10.0.0.3"], {"10.0.0.3:8000"}),
        ("10.0.0.3", {"10.0.0.3:8000"}),
        (["10.0.0.2:8000,10.0.0.3"], {"10.0.0.2:8000", "10.0.0.3:8000"}),
        (["9.9.9.9:8000", "nonsense", "10.0.0.2:8000", 7], {"10.0.0.2:8000"}),
        (NULL, set(ADDRESSES)),
    ],
    ids=repr,
)
async def test_the_gateways_subset_is_kept(picker: Picker, mode: str, hint: Any, allowed: set[str]) -> None:
    """Choice and fallbacks all come from the hint, a list or a string of ip or ip:port; null is no hint."""
    gateway = picker.gateway(mode)
    outcome = await gateway.request(chat(), hint=hint)
    assert set(outcome.destinations) == allowed
    await gateway.end()


@pytest.mark.parametrize(
    "hint", [[], "", ["9.9.9.9:8000"], ["10.0.0.1:9999"], ["nonsense"], 7, True, {"a": "10.0.0.1:8000"}], ids=repr
)
async def test_a_subset_that_holds_nobody_is_503(picker: Picker, mode: str, hint: Any) -> None:
    """A hint that is there and empty, or names nobody of the pool, refuses: the request must go nowhere else."""
    gateway = picker.gateway(mode)
    outcome = await gateway.request(chat(), hint=hint)
    assert (outcome.status, outcome.error["code"]) == (503, "no_instance_available")
    assert (outcome.reason, outcome.destinations) == ("no_instance", [])
    await gateway.end()


@pytest.mark.parametrize("written", ["[fd00::2]:8000", "[fd00::2]", "fd00::2", "[FD00:0:0::2]:8000"])
async def test_a_subset_of_ipv6(start: StartPicker, mode: str, written: str) -> None:
    """IPv6 endpoints are bracketed where a port follows, and any spelling of an address is that address."""
    picker = await start(SIX)
    gateway = picker.gateway(mode)
    outcome = await gateway.request(chat(), hint=[written])
    assert outcome.destinations == ["[fd00::2]:8000"]
    await gateway.end()


async def test_a_subset_is_known_without_headers(picker: Picker) -> None:
    """With `request_header_mode: SKIP` the hint comes with the body."""
    gateway = picker.gateway("BUFFERED")
    await gateway.write(gateway.body(chat(), last=True, hint=[ADDRESSES[2]]))
    steered = (await gateway.read()).dynamic_metadata["envoy.lb"]
    assert steered[DESTINATION] == ADDRESSES[2]
    await gateway.end()


async def test_a_subset_wins_over_what_is_unreachable(picker: Picker) -> None:
    """The only admitted instance is chosen though Envoy could not reach it just now; elsewhere it may not go."""
    picker.pool.reached(picker.pool.instances[1], ADDRESSES[0], time.monotonic() + EJECTION_S)
    gateway = picker.gateway("BUFFERED")
    assert (await gateway.request(chat(), hint=[ADDRESSES[1]])).destinations == [ADDRESSES[1]]
    await gateway.end()


async def test_without_any_endpoint_the_answer_is_503(start: StartPicker, mode: str) -> None:
    """No ready endpoint: the picker answers itself, in OpenAI's form."""
    picker = await start(())
    gateway = picker.gateway(mode)
    outcome = await gateway.request(chat())
    assert outcome.status == 503
    assert outcome.error["type"] == "service_unavailable"
    assert outcome.set_headers["content-type"] == "application/json"
    await gateway.end()


async def test_a_full_pool_sheds_with_429(picker: Picker, mode: str) -> None:
    """Where every instance has `x-smetric-max-load` requests in flight, the client is told when to come back."""
    held = [picker.gateway(mode, max_load="2") for _ in range(6)]
    outcomes = [await gateway.request(chat()) for gateway in held]
    assert [outcome.status for outcome in outcomes] == [None] * 6
    assert picker.in_flight() == dict.fromkeys(ADDRESSES, 2)

    refused = picker.gateway(mode, max_load="2")
    outcome = await refused.request(chat())
    assert (outcome.status, outcome.reason, outcome.set_headers["retry-after"]) == (429, "shed", "1")
    assert (outcome.error["type"], outcome.error["code"]) == ("too_many_requests", "pool_overloaded")
    await refused.end()

    other_route = picker.gateway(mode)
    assert (await other_route.request(chat())).status is None
    for gateway in (*held, other_route):
        await gateway.end()
    again = picker.gateway(mode, max_load="2")
    assert (await again.request(chat())).status is None
    await again.end()


async def test_a_subset_that_is_full_sheds_though_others_are_idle(picker: Picker) -> None:
    """The limit is asked of the candidates, and those are the gateway's."""
    held = picker.gateway("BUFFERED", max_load="1")
    await held.request(chat(), hint=[ADDRESSES[0]])
    refused = picker.gateway("BUFFERED", max_load="1")
    assert (await refused.request(chat(), hint=[ADDRESSES[0]])).status == 429
    for gateway in (held, refused):
        await gateway.end()


async def test_a_duplicate_of_the_last_piece_is_ignored(picker: Picker) -> None:
    """Envoy can deliver the end of a large body twice: no second answer, and the stream goes on."""
    for mode in ("BUFFERED", DUPLEX):
        gateway = picker.gateway(mode)
        await gateway.request(chat())
        await gateway.write(gateway.body(chat(), last=True))
        assert (await gateway.respond())[0] == {}
        await gateway.end()


async def test_a_body_that_does_not_end_is_408(picker: Picker, monkeypatch: pytest.MonkeyPatch) -> None:
    """No timer of Envoy's runs for a FULL_DUPLEX_STREAMED body: ours does, and gives back what was held."""
    monkeypatch.setattr(stream, "BODY_S", 0.3)
    gateway = picker.gateway(DUPLEX)
    await gateway.write(gateway.opening())
    await gateway.write(gateway.body(b'{"messages": [', last=False))
    refused = await gateway.read()
    assert refused.immediate_response.status.code == 408
    assert json.loads(refused.immediate_response.body)["error"]["code"] == "request_timeout"
    assert refused.dynamic_metadata["smetric"]["reason"] == "body_timeout"
    assert await gateway.stream.read() is grpc.aio.EOF
    assert picker.processor.streams == 0


async def test_other_modes_have_no_timer_of_ours(picker: Picker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Envoy buffers there, and times; a reply may take hours in every mode."""
    monkeypatch.setattr(stream, "BODY_S", 0.1)
    buffered, duplex = picker.gateway("BUFFERED"), picker.gateway(DUPLEX)
    await buffered.write(buffered.opening())
    await buffered.read()
    await duplex.request(chat())
    await asyncio.sleep(0.3)
    await buffered.write(buffered.body(chat(), last=True))
    assert (await buffered.read()).WhichOneof("response") == "request_body"
    for gateway in (buffered, duplex):
        await gateway.respond()
        await gateway.end()


@pytest.mark.parametrize("trailers", [False, True])
async def test_a_body_beyond_all_bounds_streams_through(picker: Picker, trailers: bool) -> None:
    """Envoy sets no limit on a FULL_DUPLEX_STREAMED body: what we hold is bounded, and the request is still served."""
    body = chat("x" * 500_000)
    gateway = picker.gateway(DUPLEX, max_body="100000")
    outcome = await gateway.request(*cut(body, 30_000), trailers=trailers)
    assert (outcome.body, outcome.reason) == (body, Reason.BODY_TOO_LARGE)
    assert len(outcome.destinations) == 3
    await gateway.respond()
    await gateway.end()


async def test_a_last_piece_may_be_the_one_too_much(picker: Picker) -> None:
    """A body whose last piece passes the bound has ended all the same."""
    gateway = picker.gateway(DUPLEX, max_body="100000")
    outcome = await gateway.request(b"x" * 60_000, b"y" * 60_000)
    assert (outcome.body[-1:], len(outcome.body), outcome.ended) == (b"y", 120_000, True)
    await gateway.end()


async def test_a_websocket_is_not_waited_for(picker: Picker) -> None:
    """An upgrade sends nothing before it is answered: it is routed at its headers, and then streams both ways."""
    gateway = picker.gateway(DUPLEX)
    await gateway.write(gateway.opening({":path": "/v1/realtime", "upgrade": "websocket", "connection": "upgrade"}))
    answer = await gateway.read()
    assert answer.WhichOneof("response") == "request_headers"
    assert answer.dynamic_metadata["smetric"]["reason"] == "body_not_sent"
    await gateway.respond(status="101")
    for data in (b"frame 1", b"frame 2"):
        await gateway.write(gateway.body(data, last=False))
        piece = (await gateway.read()).request_body.response.body_mutation.streamed_response
        assert (piece.body, piece.end_of_stream) == (data, False)
    await gateway.end()


async def test_trailers_may_follow_headers_alone(picker: Picker) -> None:
    """A request whose body never came gives none back: headers, then trailers."""
    gateway = picker.gateway(DUPLEX)
    await gateway.write(gateway.opening())
    await gateway.write(gateway.trailers())
    kinds = [(await gateway.read()).WhichOneof("response") for _ in range(2)]
    assert kinds == ["request_headers", "request_trailers"]
    await gateway.end()


async def test_an_engine_may_answer_before_the_body_has_ended(picker: Picker) -> None:
    """A body that streams through goes on being given back while the response already comes."""
    gateway = picker.gateway(DUPLEX, max_body="10")
    await gateway.write(gateway.opening())
    await gateway.write(gateway.body(b"x" * 20, last=False))
    kinds = [(await gateway.read()).WhichOneof("response") for _ in range(2)]
    assert kinds == ["request_headers", "request_body"]
    await gateway.respond()
    await gateway.write(gateway.body(b"y", last=True))
    late = (await gateway.read()).request_body.response.body_mutation.streamed_response
    assert (late.body, late.end_of_stream) == (b"y", True)
    await gateway.end()
