"""What a stranger at the gRPC port can change: all that Envoy tells, unless a certificate or a token is asked for."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest

from extproc.base import metrics
from extproc.base.headers import TOKEN
from extproc.processor import tls
from extproc.processor.server import credentials
from tests.support.ext_proc_client import BODY, Served, answered, ask, body, headers, until_idle

RESPONSE = "resp_of_somebody_else"
TIMEOUT_S = 20.0


def reply(data: bytes) -> ProcessingRequest:
    request = ProcessingRequest()
    request.response_body.body = data
    request.response_body.end_of_stream = True
    return request


async def forge(served: Served, channel: grpc.aio.Channel, *metadata: tuple[str, str]) -> int:
    """Six answers of two instances that never failed, one stored response that nobody asked for, and a request that is
    left open. Returns how many of these eight streams were heard."""
    mine, served.channel = served.channel, channel
    failed = [instance.address for instance in served.pool.instances[:2]]
    stories: list[list[ProcessingRequest]] = [[headers(end=True), answered(host, 503)] for host in failed * 3]
    stored = json.dumps({"model": "m", "input": "x"}).encode()
    theft = [headers("/v1/responses"), body(stored), answered(failed[0]), reply(json.dumps({"id": RESPONSE}).encode())]
    stories += [theft, [headers(), body(BODY)]]
    heard = 0
    streams: list[Any] = []
    try:
        for story in stories:
            streams.append(served.stream(*metadata))
            try:
                await ask(streams[-1], *story)
            except (grpc.aio.AioRpcError, grpc.aio.UsageError, AttributeError):  # the last: nothing was read
                continue
            heard += streams[-1].done() is False
        return heard
    finally:
        served.channel = mine
        for stream in streams:
            stream.cancel()


async def nothing_changed(served: Served) -> None:
    """And Envoy, which shows what is asked for, is served as before."""
    await until_idle(served)
    assert not served.pool.ejections.ejected(time.monotonic())
    assert served.routed == []
    assert await served.services.router._index.recall("pool", RESPONSE) is None


async def test_an_open_port_believes_anybody() -> None:
    """The same answers change it all where nothing is asked for: what an open port risks (SECURITY.md)."""
    async with Served(3).run() as served, served.connect(None) as stranger:
        assert await forge(served, stranger) == 8
        assert len(served.pool.ejections.ejected(time.monotonic())) == 2
        assert await served.services.router._index.recall("pool", RESPONSE) == served.pool.instances[0].name
        assert len(served.routed) == 8
        await until_idle(served)


@pytest.mark.parametrize("shown", [(), ((TOKEN, "wrong"),), ((TOKEN, ""),)], ids=["none", "wrong", "empty"])
async def test_who_does_not_know_the_token(shown: tuple[tuple[str, str], ...]) -> None:
    """Not one of them is heard, all are counted."""
    before = metrics.REFUSED_STREAMS._value.get()
    async with Served(3, tokens=("geheim",)).run() as served, served.connect(None) as stranger:
        assert await forge(served, stranger, *shown) == 0
        await nothing_changed(served)
        assert metrics.REFUSED_STREAMS._value.get() == before + 8
        assert "request_headers" in (await ask(served.stream((TOKEN, "geheim")), headers(end=True)))[0]


@pytest.mark.parametrize("stranger", ["plaintext", "no certificate", "another authority's"])
async def test_who_has_no_certificate(stranger: str, tmp_path: Path) -> None:
    """Not one of them gets past the handshake, whatever they speak."""
    server, client = tls.make_self_signed(), tls.make_self_signed()
    (tmp_path / "ca").write_bytes(client.certificate)
    secured = credentials(lambda: server, tls.AuthorityFile(tmp_path / "ca"))
    envoy = grpc.ssl_channel_credentials(server.certificate, client.key, client.certificate)
    other = tls.make_self_signed()
    shown = {
        "plaintext": None,
        "no certificate": grpc.ssl_channel_credentials(server.certificate),
        "another authority's": grpc.ssl_channel_credentials(server.certificate, other.key, other.certificate),
    }[stranger]
    async with Served(3, secured=secured, shown=envoy).run() as served, served.connect(shown) as channel:
        assert await forge(served, channel) == 0
        await nothing_changed(served)
        assert "request_headers" in (await ask(served.stream(), headers(end=True)))[0]
