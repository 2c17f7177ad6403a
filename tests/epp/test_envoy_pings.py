"""Keepalive pings of a real Envoy to the processor, for as long as replies stream and while nothing does."""

from __future__ import annotations

import asyncio

from extproc.processor.server import BASIC, OPTIONS
from tests.support.envoy_yaml import Yaml, cluster
from tests.support.real_envoy import END, RealEnvoy, mode, post

UPSTREAM = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
PINGS = 60  # twenty times what gRPC's defaults let pass


def ping_often(tree: Yaml) -> None:
    """The shortest interval that anybody would write, and more."""
    options = cluster(tree, "extproc")["typed_extension_protocol_options"][UPSTREAM]["explicit_http_config"]
    options["http2_protocol_options"]["connection_keepalive"] = {"interval": "0.02s", "timeout": "10s"}


async def test_pings_end_no_stream() -> None:
    """Neither while a reply streams, which sends us no data, nor between requests: not one connection is closed."""
    duplex = mode(
        "FULL_DUPLEX_STREAMED", response_trailer_mode="SEND"
    )  # cannot fail open: a lost stream is a lost reply
    async with RealEnvoy({"buffered": mode("BUFFERED"), "duplex": duplex}, whole=ping_often) as envoy:
        (engine,) = envoy.engines
        async with envoy.connect("buffered") as first, envoy.connect("duplex") as second:
            for client in (first, second):
                await client.send(post())
                assert " 200 " in await client.head()
            await asyncio.sleep(0.02 * PINGS)
            assert envoy.in_flight() == 2
            engine.release.set()
            for client in (first, second):
                await client.until(END)
        await envoy.until(lambda: envoy.in_flight() == 0)
        await asyncio.sleep(0.02 * PINGS)
        assert " 200 " in await envoy.ask("buffered", post())
        assert await envoy.stats("streams_failed") == {}
        assert await envoy.stats("cluster.extproc.upstream_cx_destroy_remote") == {}
        assert await envoy.stats("cluster.extproc.upstream_cx_total") == {"cluster.extproc.upstream_cx_total": 1}


def test_every_port_takes_pings() -> None:
    """Kubernetes and Envoy ping the health port as well: what all servers share is in the processor's options too."""
    assert dict(BASIC)["grpc.http2.max_ping_strikes"] == 0
    assert dict(BASIC).items() <= dict(OPTIONS).items()
