"""The Endpoint Picker Protocol after the decision: the answer on its way back, aborts, conformance."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from extproc.base.headers import CONFORMANCE_SELECTION, CONFORMANCE_SERVED
from tests.epp.conftest import ADDRESSES, Picker, StartPicker
from tests.epp.gateway import DUPLEX, Gateway, chat

WORDS = ["Hé", "llo", " ", "wörld", "\U0001f600"]
DELTAS = [json.dumps({"choices": [{"index": 0, "delta": {"content": word}}]}, ensure_ascii=False) for word in WORDS]
SSE = b"".join(f"data: {delta}\n\n".encode() for delta in (*DELTAS, "[DONE]"))


@pytest.mark.parametrize("response_mode", ["NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", DUPLEX])
@pytest.mark.parametrize("trailers", [False, True])
async def test_an_sse_answer_cut_at_every_byte_arrives_whole(
    picker: Picker, mode: str, response_mode: str, trailers: bool
) -> None:
    """Where an operator has answers shown to us, each byte comes back, even when a character is cut in two."""
    gateway = picker.gateway(mode, response_mode)
    await gateway.request(chat(stream=True))
    pieces = [SSE[at : at + 1] for at in range(len(SSE))] if response_mode in ("STREAMED", DUPLEX) else [SSE]
    assert (await gateway.respond(*pieces, trailers=trailers))[1] == SSE
    await gateway.end()


async def test_a_large_answer_comes_back_in_small_chunks(picker: Picker) -> None:
    """The limit on chunks holds on the way back too (the gateway asserts it)."""
    gateway = picker.gateway("BUFFERED", DUPLEX)
    await gateway.request(chat())
    big = bytes(range(256)) * 1_000
    assert (await gateway.respond(big, b""))[1] == big
    await gateway.end()


async def test_load_is_counted_where_the_gateway_says_it_served(picker: Picker, mode: str) -> None:
    """`x-gateway-destination-endpoint-served` may name a fallback: the load is there, and the choice is ejected."""
    gateway = picker.gateway(mode)
    first = await gateway.request(chat())
    assert first.destinations[0] == ADDRESSES[0]
    await gateway.respond(served=ADDRESSES[1])
    assert picker.in_flight() == {ADDRESSES[1]: 1}
    assert [one.address for one in picker.pool.candidates(time.monotonic())] == list(ADDRESSES[1:])
    await gateway.end()
    assert picker.in_flight() == {}


async def test_an_abort_after_the_end_costs_nothing(
    picker: Picker, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Envoy resets the stream of an exchange that is over: no complaint, and the load is back."""
    for answered in (False, True):
        gateway = picker.gateway(mode)
        await gateway.request(chat())
        if answered:
            await gateway.respond()
        gateway.stream.cancel()
        await _idle(picker)
    assert not [record for record in caplog.records if record.name.startswith("extproc")]


async def test_an_abort_in_the_middle_of_a_body_gives_all_back(picker: Picker) -> None:
    """A client that hangs up while we collect its body leaves neither load nor stream."""
    gateway = picker.gateway(DUPLEX)
    await gateway.write(gateway.opening())
    await gateway.write(gateway.body(b"{", last=False))
    gateway.stream.cancel()
    await _idle(picker)


async def test_a_local_answer_before_the_decision_passes(picker: Picker) -> None:
    """A body over Envoy's own limit is answered by Envoy (413) while we wait for it."""
    for mode in ("BUFFERED", DUPLEX):
        gateway = picker.gateway(mode)
        await gateway.write(gateway.opening())
        if mode == "BUFFERED":
            await gateway.read()
        await gateway.respond(status="413")
        await gateway.end()
    assert picker.in_flight() == {}


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        ("10.0.0.3:8000", {ADDRESSES[2]}),
        ("10.0.0.3", {ADDRESSES[2]}),
        ("10.0.0.2, 10.0.0.3:8000", set(ADDRESSES[1:])),
    ],
)
async def test_conformance_tests_choose_the_endpoint(
    start: StartPicker, mode: str, wanted: str, allowed: set[str]
) -> None:
    """With `--conformance` a request header restricts the candidates, before any hint; a wrong one is 503."""
    picker = await start(conformance=True)
    gateway: Gateway = picker.gateway(mode)
    outcome = await gateway.request(chat(), headers={CONFORMANCE_SELECTION: wanted}, hint=[ADDRESSES[0]])
    assert set(outcome.destinations) == allowed
    await gateway.end()
    refused: Gateway = picker.gateway(mode)
    outcome = await refused.request(chat(), headers={CONFORMANCE_SELECTION: "256.256.256.256"})
    assert outcome.status == 503
    await refused.end()


async def test_conformance_tests_hear_who_served(start: StartPicker, mode: str) -> None:
    """A response header repeats what the gateway reports, and says so where it reports nothing."""
    picker = await start(conformance=True)
    for served in (ADDRESSES[1], None):
        gateway: Gateway = picker.gateway(mode)
        await gateway.request(chat())
        told, _ = await gateway.respond(served=served)
        assert told == {CONFORMANCE_SERVED: served or "not reported by the gateway"}
        await gateway.end()


async def test_nobody_is_steered_by_a_client_otherwise(picker: Picker, mode: str) -> None:
    """Without the flag the headers of the conformance tests mean nothing."""
    gateway = picker.gateway(mode)
    outcome = await gateway.request(chat(), headers={CONFORMANCE_SELECTION: ADDRESSES[2]})
    assert outcome.destinations[0] == ADDRESSES[0]
    assert (await gateway.respond(served=ADDRESSES[0]))[0] == {}
    await gateway.end()


async def _idle(picker: Picker) -> None:
    async with asyncio.timeout(20):
        while picker.processor.streams or picker.in_flight():
            await asyncio.sleep(0.01)
