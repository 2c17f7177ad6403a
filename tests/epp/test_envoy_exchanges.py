"""Exchanges that are no chat with a streamed reply, through a real Envoy in every mode: each is served."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.envoy_yaml import Yaml, cluster
from tests.support.real_envoy import BODY, Change, RealEnvoy, body_of, manager_of, mode, post

pytestmark = pytest.mark.asyncio(loop_scope="module")

DUPLEX = "FULL_DUPLEX_STREAMED"
UPSTREAM = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
TYPE = f"type.googleapis.com/{UPSTREAM}"
ABORT = "x-envoy-fault-abort-request"
REFUSES = {
    "name": "fault",
    "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault",
        "abort": {"header_abort": {}, "percentage": {"numerator": 100}},
    },
}
CHAT = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
CHUNK = f"{len(BODY):x}\r\n{BODY.decode()}\r\n"


def beside(ours: Change, theirs: Change) -> Change:
    """Two ext_proc filters in different modes, as where somebody else's stands behind ours."""

    def both(listener: Yaml) -> None:
        other = copy.deepcopy(listener)
        ours(listener)
        theirs(other)
        (entry,) = (one for one in manager_of(other)["http_filters"] if one["name"].endswith("ext_proc"))
        manager_of(listener)["http_filters"].insert(1, entry | {"name": "another"})

    return both


MODES: dict[str, Change] = {
    **{name: mode(name) for name in ("NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL")},
    "all of it": mode(
        "BUFFERED", request_trailer_mode="SEND", response_body_mode="STREAMED", response_trailer_mode="SEND"
    ),
    "duplex": mode(DUPLEX, response_trailer_mode="SEND"),
    "duplex, both ways": mode(DUPLEX, response_body_mode=DUPLEX, response_trailer_mode="SEND"),
}
PAIRS: dict[str, Change] = {
    f"{ours} before {theirs}": beside(MODES[ours], MODES[theirs])
    for ours in ("BUFFERED", "NONE", "duplex")
    for theirs in ("BUFFERED", "duplex, both ways")
    if ours != theirs
}
REQUESTS = {
    "HEAD": "HEAD /v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
    "OPTIONS": "OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: x\r\n\r\n",
    "DELETE": "DELETE /v1/responses/resp_1 HTTP/1.1\r\nhost: x\r\n\r\n",
    "GET with a body": "GET /v1/models HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}",
    "POST of nothing": f"{CHAT}content-length: 0\r\n\r\n",
    "POST without a length": f"{CHAT}\r\n",
    "an empty chunk": f"{CHAT}transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks": f"{CHAT}transfer-encoding: chunked\r\n\r\n{CHUNK}0\r\n\r\n",
    "trailers": f"{CHAT}transfer-encoding: chunked\r\n\r\n{CHUNK}0\r\nx-t: 1\r\n\r\n",
    # Java's client offers this with its first request; it is no tunnel, and Envoy takes the offer out.
    "an offer of h2c": post(
        headers=["connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQAAP__"]
    ).decode(),
}
REPLIES = {
    "204": "HTTP/1.1 204 No Content\r\n\r\n",
    "304": "HTTP/1.1 304 Not Modified\r\n\r\n",
    "103 first": "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "100 first": "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "trailers": "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-t: 1\r\n\r\n",
    "trailers alone": "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx-t: 1\r\n\r\n",
    "no length": "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nok",
    "an error": "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\nok",
}


def with_trailers(tree: Yaml) -> None:
    """HTTP/1.1 has them only when asked for. And a filter that refuses what a test wants refused."""
    for listener in tree["static_resources"]["listeners"]:
        manager_of(listener)["http_protocol_options"] = {"enable_trailers": True}
        manager_of(listener)["http_filters"].insert(0, copy.deepcopy(REFUSES))
    http1 = {"@type": TYPE, "explicit_http_config": {"http_protocol_options": {"enable_trailers": True}}}
    cluster(tree, "vllm")["typed_extension_protocol_options"] = {UPSTREAM: http1}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def envoy() -> AsyncIterator[RealEnvoy]:
    """One engine, and a listener for each mode."""
    async with RealEnvoy(MODES | PAIRS, whole=with_trailers) as running:
        running.engines[0].release.set()
        yield running


@pytest.fixture(autouse=True)
def engine_that_streams(envoy: RealEnvoy) -> None:
    """Unless a test says otherwise."""
    envoy.engines[0].reply = envoy.engines[0].stream


@pytest.mark.parametrize("listener", [*MODES])
@pytest.mark.parametrize("request_text", [*REQUESTS])
async def test_every_request_is_served(envoy: RealEnvoy, listener: str, request_text: str) -> None:
    """With any method and any body, or none."""
    served = len(envoy.engines[0].heads)
    assert " 200 " in await envoy.ask(listener, REQUESTS[request_text].encode())
    assert len(envoy.engines[0].heads) == served + 1
    doubled = request_text == "trailers" and listener.startswith("duplex")  # by Envoy: test_envoy_traps.py
    if BODY.decode() in REQUESTS[request_text] and not doubled:
        assert envoy.engines[0].bodies[-1] == BODY
    await envoy.until(lambda: envoy.in_flight() == 0)


@pytest.mark.parametrize("listener", [*MODES])
async def test_an_answer_of_a_filter_before_ours_arrives(envoy: RealEnvoy, listener: str) -> None:
    """A rate limit, an authorisation: its answer opens our stream, and comes through as it is."""
    served = len(envoy.engines[0].heads)
    async with envoy.connect(listener) as client:
        await client.send(post(headers=[f"{ABORT}: 429"]))
        assert " 429 " in await client.head()
        await client.until(b"fault filter abort")
    assert len(envoy.engines[0].heads) == served
    await envoy.until(lambda: envoy.served.processor.streams == 0)


@pytest.mark.parametrize("listener", [*MODES])
async def test_a_client_that_waits_to_be_asked_for_its_body(envoy: RealEnvoy, listener: str) -> None:
    """`Expect: 100-continue`, as curl sends it with bodies of more than a megabyte."""
    head, _, body = post(headers=["expect: 100-continue"]).partition(b"\r\n\r\n")
    async with envoy.connect(listener) as client:
        await client.send(head + b"\r\n\r\n")
        assert " 100 " in await client.head()
        await client.send(body)
        assert " 200 " in await client.head()
    assert envoy.engines[0].bodies[-1] == BODY


@pytest.mark.parametrize("listener", [*MODES])
@pytest.mark.parametrize("reply", [*REPLIES])
async def test_every_reply_arrives(envoy: RealEnvoy, listener: str, reply: str) -> None:
    """Without a body, after another head, with trailers, up to the connection's end."""

    async def answer(head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await body_of(head, reader)
        writer.write(REPLIES[reply].encode())
        if "connection: close" in REPLIES[reply]:
            await writer.drain()
            writer.close()

    envoy.engines[0].reply = answer
    final, _, rest = REPLIES[reply].rpartition("HTTP/1.1 ")[2].partition("\r\n\r\n")
    async with envoy.connect(listener) as client:
        await client.send(post())
        assert (await client.head()).split()[1] == final.split()[0]
        for part in ("ok", "x-t: 1"):
            if part in rest:
                await client.until(part.encode())
    await envoy.until(lambda: envoy.in_flight() == 0)


@pytest.mark.parametrize("listener", [*MODES, *PAIRS])
@pytest.mark.parametrize("length", [True, False])
async def test_large_bodies_pass_both_ways(envoy: RealEnvoy, listener: str, length: bool) -> None:
    """Megabytes in, half a megabyte out, in pieces, with a length or not, and beside another filter: every byte."""
    large = bytes(range(32, 127)) * 5_000

    async def answer(head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        envoy.engines[0].bodies.append(await body_of(head, reader))
        framing = f"content-length: {len(large)}" if length else "transfer-encoding: chunked"
        writer.write(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode())
        for start in range(0, len(large), 60_000):
            piece = large[start : start + 60_000]
            writer.write(piece if length else b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"" if length else b"0\r\n\r\n")

    envoy.engines[0].reply = answer
    sent = BODY + b" " * 1_500_000
    async with envoy.connect(listener) as client:
        await client.send(post(body=sent))
        head = (await client.head()).lower()
        async with asyncio.timeout(30):
            assert await body_of(head, client.reader) == large
    assert envoy.engines[0].bodies[-1] == sent
    await envoy.until(lambda: envoy.in_flight() == 0)


@pytest.mark.parametrize("listener", [*MODES])
async def test_an_engine_may_answer_before_the_body_ends(envoy: RealEnvoy, listener: str) -> None:
    """413 or 400 while the client still sends: it gets that answer, and nothing is held."""

    async def refuse(_: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 413 Payload Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        await reader.read()

    envoy.engines[0].reply = refuse
    assert " 413 " in await envoy.ask(listener, post(body=BODY + b" " * 300_000))
    await envoy.until(lambda: envoy.in_flight() == 0)


@pytest.mark.parametrize("listener", [*MODES])
async def test_a_retry_has_the_whole_body(envoy: RealEnvoy, listener: str) -> None:
    """The engine dies before it answers: whoever is next gets every byte, in duplex modes too."""
    engine, body = envoy.engines[0], BODY + b" " * 200_000
    bodies: list[bytes] = []

    async def die_once(head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bodies.append(await body_of(head, reader))
        if len(bodies) == 1:
            writer.transport.abort()
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    engine.reply = die_once
    assert " 200 " in await envoy.ask(listener, post(body=body))
    assert bodies == [body, body]
    await envoy.until(lambda: envoy.in_flight() == 0)


async def test_envoy_has_nothing_to_complain_about(envoy: RealEnvoy) -> None:
    """After all of the above."""
    for name in ("streams_failed", "spurious_msgs_received", "message_timeouts", "rejected_header_mutations"):
        assert await envoy.stats(f"ext_proc.{name}") == {}
