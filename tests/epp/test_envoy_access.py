"""What lets only our Envoy in, and how much of a connection it may take, through a real one."""

from __future__ import annotations

from contextlib import AsyncExitStack

from extproc.base import metrics
from extproc.base.headers import TOKEN
from tests.support.envoy_yaml import Yaml
from tests.support.real_envoy import Change, RealEnvoy, filter_of, post


def showing(token: str | None) -> Change:
    """A listener whose filter shows this token."""

    def show(listener: Yaml) -> None:
        if token is not None:
            filter_of(listener)["grpc_service"]["initial_metadata"].append({"key": TOKEN, "value": token})

    return show


async def test_a_token_in_the_filter() -> None:
    """With it requests are decided; without it, or with another, they are served without us."""
    listeners = {"right": showing("secret"), "wrong": showing("guess"), "none": showing(None)}
    async with RealEnvoy(listeners, tokens=["secret"]) as envoy:
        envoy.engines[0].release.set()
        bad = metrics.BAD_ROUTES._value.get()
        for name in listeners:
            assert " 200 " in await envoy.ask(name, post())
        assert len(envoy.served.routed) == 1
        assert metrics.BAD_ROUTES._value.get() == bad


async def test_envoy_opens_another_connection_where_one_is_full() -> None:
    """The limit on streams bounds what one peer may hold, and costs no request its decision once Envoy knows of it."""
    async with RealEnvoy({"one": showing(None)}, max_streams=2) as envoy, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(envoy.connect("one")) for _ in range(7)]
        for client in clients:
            await client.send(post())
            assert " 200 " in await client.head()
        assert envoy.in_flight() == 7
        counters = await envoy.stats("cluster.extproc.upstream_cx_active")
        assert counters["cluster.extproc.upstream_cx_active"] >= 4
        assert await envoy.stats("streams_failed") == {}
