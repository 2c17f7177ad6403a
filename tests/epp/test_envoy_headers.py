"""Requests at Envoy's header limits: what Envoy lets in, an engine serves, and the decision steers all the same."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from extproc.base import metrics
from extproc.base.headers import DESTINATION
from extproc.base.model import Gateway
from tests.support.envoy_yaml import Yaml
from tests.support.real_envoy import END, RealEnvoy, manager_of, mode, post

pytestmark = pytest.mark.asyncio(loop_scope="module")

DUPLEX = "FULL_DUPLEX_STREAMED"
OURS = 5  # lines of `post`
LARGEST = 60 * 1024 - 120  # bytes of one header that Envoy lets in beside those of `post`


def raised(listener: Yaml) -> None:
    """An operator who lets more in."""
    manager_of(listener)["common_http_protocol_options"] = {"max_headers_count": 150}
    manager_of(listener)["max_request_headers_kb"] = 90


MODES = {"NONE": mode("NONE"), "BUFFERED": mode("BUFFERED"), DUPLEX: mode(DUPLEX, response_trailer_mode="SEND")}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def envoy() -> AsyncIterator[RealEnvoy]:
    """Two engines; a listener for each mode, and one with higher limits."""
    async with RealEnvoy(MODES | {"raised": raised}, engines=2) as running:
        for engine in running.engines:
            engine.release.set()
        yield running


async def serve(envoy: RealEnvoy, listener: str, headers: list[str]) -> bool:
    """One request, which the chosen engine must serve. Returns whether that saw our header."""
    seen = [len(engine.heads) for engine in envoy.engines]
    async with envoy.connect(listener) as client:
        await client.send(post(headers=headers))
        head = await client.head()
        assert head.startswith("HTTP/1.1 200 "), (head, envoy.log[-500:])
        await client.until(END)
    (served,) = (engine for engine, before in zip(envoy.engines, seen, strict=True) if len(engine.heads) > before)
    assert served.address == envoy.served.routed[-1]
    return f"\r\n{DESTINATION}: {served.address}" in served.heads[-1]


@pytest.mark.parametrize("listener", [*MODES])
async def test_as_many_headers_as_envoy_lets_in(envoy: RealEnvoy, listener: str) -> None:
    """Beside them there is room for ours at first, then for none; Envoy's own take the last places."""
    told = [await serve(envoy, listener, [f"h-{i}: x" for i in range(count)]) for count in range(80, 100 - OURS + 1)]
    assert told == sorted(told, reverse=True)
    assert (told[0], told[-1]) == (True, False)


@pytest.mark.parametrize("listener", [*MODES])
async def test_repeated_headers_count_each_time(envoy: RealEnvoy, listener: str) -> None:
    """To Envoy a header of ninety lines is ninety headers."""
    assert await serve(envoy, listener, ["h: x"] * 80)
    assert not await serve(envoy, listener, ["h: x"] * (100 - OURS))


@pytest.mark.parametrize("listener", [*MODES])
async def test_as_long_headers_as_envoy_lets_in(envoy: RealEnvoy, listener: str) -> None:
    """Byte by byte around the limit."""
    told = [await serve(envoy, listener, [f"h: {'x' * size}"]) for size in range(LARGEST - 240, LARGEST + 1, 20)]
    assert told[-1] is False
    assert await serve(envoy, listener, [f"h: {'x' * (LARGEST - 1000)}"])


@pytest.mark.parametrize("listener", [*MODES])
async def test_a_forged_destination_steers_nothing(envoy: RealEnvoy, listener: str) -> None:
    """Where ours has no room to overwrite it, the metadata still decides (`serve` asserts it)."""
    for engine in envoy.engines:
        for count in (10, 100 - OURS - 1):
            await serve(envoy, listener, [f"{DESTINATION}: {engine.address}", *(f"h-{i}: x" for i in range(count))])


async def test_limits_that_an_operator_raised(envoy: RealEnvoy) -> None:
    """What the YAML says counts: our header finds room where Envoy's default would end."""
    many = [f"h-{i}: x" for i in range(120)]
    assert not await serve(envoy, "raised", many)
    envoy.served.services.gateway = Gateway(max_headers=150, max_header_bytes=90 * 1024)
    try:
        assert await serve(envoy, "raised", many)
        assert await serve(envoy, "raised", [f"h: {'x' * (80 * 1024)}"])
    finally:
        envoy.served.services.gateway = Gateway()


async def test_what_was_left_out_is_counted(envoy: RealEnvoy) -> None:
    """By the header's name."""
    counter = metrics.HEADERS_LEFT_OUT.labels("pool", DESTINATION)
    before = counter._value.get()
    await serve(envoy, "BUFFERED", [f"h-{i}: x" for i in range(100 - OURS)])
    assert counter._value.get() == before + 1
    assert await envoy.stats("rejected_header_mutations") == {}
