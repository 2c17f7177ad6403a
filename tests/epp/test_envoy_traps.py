"""Traps of Envoy that `check` warns of, through a real one: a version that no longer falls into one needs no row."""

from __future__ import annotations

import copy
import gzip
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.envoy_yaml import Yaml
from tests.support.real_envoy import BODY, Change, RealEnvoy, manager_of, mode, post

pytestmark = pytest.mark.asyncio(loop_scope="module")

DUPLEX = mode("FULL_DUPLEX_STREAMED", response_trailer_mode="SEND")
EXTENSIONS = "type.googleapis.com/envoy.extensions"
DECOMPRESSOR = {
    "name": "decompressor",
    "typed_config": {
        "@type": f"{EXTENSIONS}.filters.http.decompressor.v3.Decompressor",
        "decompressor_library": {
            "name": "gzip",
            "typed_config": {"@type": f"{EXTENSIONS}.compression.gzip.decompressor.v3.Gzip"},
        },
    },
}


def with_filter(change: Change, position: int, http_filter: Yaml = DECOMPRESSOR) -> Change:
    """The same with one more filter; ours is the first."""

    def insert(listener: Yaml) -> None:
        change(listener)
        manager_of(listener)["http_filters"].insert(position, copy.deepcopy(http_filter))

    return insert


def without_retries(change: Change) -> Change:
    """The same with a route that never retries."""

    def remove(listener: Yaml) -> None:
        change(listener)
        (host,) = manager_of(listener)["route_config"]["virtual_hosts"]
        del host["routes"][0]["route"]["retry_policy"]

    return remove


def strict(listener: Yaml) -> None:
    """Underscores are refused."""
    options = {"headers_with_underscores_action": "REJECT_REQUEST"}
    manager_of(listener)["common_http_protocol_options"] = options


def twice(listener: Yaml) -> None:
    """Two filters of ours."""
    filters = manager_of(listener)["http_filters"]
    filters.insert(0, copy.deepcopy(filters[0]) | {"name": "again"})


LISTENERS: dict[str, Change] = {
    "decompressed, BUFFERED": with_filter(mode("BUFFERED"), 0),
    "decompressed, duplex": with_filter(DUPLEX, 0),
    "decompressed, duplex, no retries": without_retries(with_filter(DUPLEX, 0)),
    "decompressed too late": with_filter(mode("BUFFERED"), 1),
    "strict": strict,
    "twice": twice,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def envoy() -> AsyncIterator[RealEnvoy]:
    """Two engines, and a listener for each trap."""
    async with RealEnvoy(LISTENERS, engines=2) as running:
        for engine in running.engines:
            engine.release.set()
        yield running


@pytest.mark.parametrize(
    ("listener", "body", "readable"),
    [
        ("decompressed, BUFFERED", BODY, True),
        ("decompressed, duplex", BODY + BODY, True),
        ("decompressed, duplex, no retries", BODY, True),
        ("decompressed too late", BODY, False),
    ],
)
async def test_what_a_decompressor_does(envoy: RealEnvoy, listener: str, body: bytes, readable: bool) -> None:
    """Before ours it is right, but that in duplex mode Envoy sends what it keeps for a retry at once as well."""
    reasons: list[str] = []
    envoy.served.services.on_routed = lambda _, routed: reasons.append(routed.choice.reason.value)
    request = post(body=gzip.compress(BODY), headers=["content-encoding: gzip"])
    assert " 200 " in await envoy.ask(listener, request)
    assert [engine.bodies.pop() for engine in envoy.engines if engine.bodies] == [body]
    assert reasons == ["first_turn" if readable else "unreadable_body"]


async def test_what_envoy_refuses_while_parsing_is_a_closed_connection(envoy: RealEnvoy) -> None:
    """It asks us about its 400 and is gone before the answer; nothing is held."""
    async with envoy.connect("strict") as client:
        await client.send(post(headers=["session_id: a"]))
        assert await client.read() == b""
    await envoy.until(lambda: envoy.served.processor.streams == 0)


async def test_two_filters_decide_twice(envoy: RealEnvoy) -> None:
    """And both loads are held as long as the reply streams."""
    for engine in envoy.engines:
        engine.release.clear()
    async with envoy.connect("twice") as client:
        await client.send(post())
        await client.until(b"hello")
        assert envoy.in_flight() == 2
    await envoy.until(lambda: envoy.in_flight() == 0)
