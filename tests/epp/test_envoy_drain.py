"""A processor that leaves while replies stream, through a real Envoy: each reply ends as its engine ends it."""

from __future__ import annotations

import pytest

from extproc.processor.server import drain
from tests.support.real_envoy import END, RealEnvoy, mode, post

DUPLEX = "FULL_DUPLEX_STREAMED"
MODES = {
    "NONE": mode("NONE"),
    "BUFFERED": mode("BUFFERED"),
    "shown": mode("BUFFERED", response_body_mode="STREAMED"),
    "duplex": mode(DUPLEX, response_trailer_mode="SEND"),
    "duplex, both ways": mode(DUPLEX, response_body_mode=DUPLEX, response_trailer_mode="SEND"),
}


@pytest.mark.parametrize("listener", MODES)
async def test_a_drain_cuts_off_no_reply(listener: str) -> None:
    """Its time is over before the reply is: Envoy hears a stream that ends well, and goes on alone, in every mode."""
    async with RealEnvoy({listener: MODES[listener]}) as envoy:
        async with envoy.connect(listener) as client:
            await client.send(post())
            await client.until(b"hello\r\n")
            assert envoy.in_flight() == 1
            await drain(envoy.served.server, envoy.served.processor, 0.1)
            assert (envoy.in_flight(), envoy.served.processor.streams) == (0, 0)
            envoy.engines[0].release.set()
            await client.until(END)
        assert await envoy.stats("ext_proc.streams_failed") == {}


async def test_a_drain_waits_for_what_is_nearly_done() -> None:
    """Within its time a stream ends by itself, and its load is true until then."""
    async with RealEnvoy({"duplex": MODES["duplex"]}) as envoy, envoy.connect("duplex") as client:
        await client.send(post())
        await client.until(b"hello\r\n")
        envoy.engines[0].release.set()
        await drain(envoy.served.server, envoy.served.processor, 30.0)
        await client.until(END)
