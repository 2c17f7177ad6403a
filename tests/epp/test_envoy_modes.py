"""Every processing mode that Envoy takes, through a real one: whatever it shows or skips, nothing is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from itertools import product
from typing import Final

import pytest
import pytest_asyncio

from tests.support.real_envoy import BODY, END, RealEnvoy, mode, post

pytestmark = pytest.mark.asyncio(loop_scope="module")

DUPLEX: Final = "FULL_DUPLEX_STREAMED"
BODIES: Final = ("NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", DUPLEX)
HEADERS: Final = ("SEND", "SKIP")


def combined() -> Mapping[str, dict[str, str]]:
    """By a name, all modes of bodies and headers; Envoy demands trailers where bodies stream both ways."""
    found = {}
    for request, response, asks, answers in product(BODIES, BODIES, HEADERS, HEADERS):
        modes = {"request_body_mode": request, "response_body_mode": response}
        modes |= {"request_header_mode": asks, "response_header_mode": answers}
        if response == DUPLEX:
            modes["response_trailer_mode"] = "SEND"
        found[f"{request} {asks}, {response} {answers}"] = modes
    return found


COMBINED: Final = combined()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def envoy() -> AsyncIterator[RealEnvoy]:
    """A listener for each."""
    listeners = {
        name: mode(modes["request_body_mode"], **{key: modes[key] for key in modes if key != "request_body_mode"})
        for name, modes in COMBINED.items()
    }
    async with RealEnvoy(listeners) as running:
        running.engines[0].release.set()
        yield running


async def test_every_combination_is_served(envoy: RealEnvoy) -> None:
    """The engine gets the whole body, the client the whole reply, and no load stays."""
    engine = envoy.engines[0]
    for name in COMBINED:
        answer = await envoy.ask(name, post(), until=END)
        assert (" 200 " in answer, "hello" in answer, engine.bodies[-1]) == (True, True, BODY), name
        await envoy.until(lambda: envoy.in_flight() == 0)
    assert len(engine.heads) == len(COMBINED)
    for counter in ("streams_failed", "spurious_msgs_received", "message_timeouts"):
        assert await envoy.stats(f"ext_proc.{counter}") == {}
