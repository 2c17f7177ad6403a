"""Pickers to talk to, over plaintext and over TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

from extproc.base.model import Instance
from extproc.index.memory import MemoryIndex
from extproc.processor import tls
from extproc.processor.prefiller import Prefiller
from extproc.processor.server import OPTIONS, Processor, credentials
from extproc.processor.stream import Services
from extproc.prompts.renderer import PlainRenderer
from extproc.routing.pools.loads import Loads
from extproc.routing.pools.pool import Pool
from extproc.routing.route_settings import RouteSettings, route_settings
from extproc.routing.router import Router
from tests.epp.gateway import MODES, Gateway

ADDRESSES = ("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000")


class Picker:
    """A running picker with one pool, and a channel to it."""

    def __init__(self, addresses: Sequence[str] = ADDRESSES, *, conformance: bool = False) -> None:
        self.loads = Loads()
        self.pool = Pool("pool", PlainRenderer(), instances=[Instance(address) for address in addresses])
        router = Router(MemoryIndex(), self.loads)
        self.prefiller = Prefiller()
        services = Services(router, {"pool": self.pool}, _route, lambda *_: None, self.prefiller, conformance)
        self.processor = Processor(services)
        self.channel: grpc.aio.Channel

    async def start(self, stack: AsyncExitStack, pair: tls.Pair | None) -> Picker:
        """Listen, by TLS where there is a certificate."""
        server = grpc.aio.server(options=OPTIONS)
        server.add_generic_rpc_handlers((self.processor.handler(),))
        if pair is None:
            port = server.add_insecure_port("127.0.0.1:0")
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS)
        else:
            port = server.add_secure_port("127.0.0.1:0", credentials(lambda: pair))
            options = (*OPTIONS, ("grpc.ssl_target_name_override", "localhost"))
            trusted = grpc.ssl_channel_credentials(pair.certificate)
            channel = grpc.aio.secure_channel(f"127.0.0.1:{port}", trusted, options=options)
        await server.start()
        stack.push_async_callback(self.prefiller.close)
        stack.push_async_callback(server.stop, 0)
        self.channel = await stack.enter_async_context(channel)
        return self

    def gateway(self, mode: str, response_mode: str = "NONE", **route: str) -> Gateway:
        """One HTTP exchange; `route` is the route's metadata: `max_load="2"`."""
        given = {f"x-smetric-{key.replace('_', '-')}": value for key, value in route.items()}
        return Gateway(self.channel, mode, response_mode, route=given)

    def in_flight(self) -> dict[str, int]:
        """Requests in flight, by instance."""
        return {name: count for name, (count, *_) in self.loads.snapshot("pool").items()}


def _route(metadata: Sequence[tuple[str, str]]) -> RouteSettings:
    default = RouteSettings("pool")
    given: Mapping[str, str] = dict(metadata)
    return route_settings(given, default)


StartPicker = Callable[..., Any]


@pytest.fixture(scope="session")
def certificate() -> tls.Pair:
    """A certificate for localhost."""
    return tls.make_self_signed()


@pytest.fixture(params=["plaintext", "tls"])
async def start(request: pytest.FixtureRequest, certificate: tls.Pair) -> AsyncIterator[StartPicker]:
    """Starts pickers: `await start(addresses, conformance=True)`."""
    async with AsyncExitStack() as stack:

        async def start_one(*addresses: Sequence[str], conformance: bool = False) -> Picker:
            picker = Picker(*addresses, conformance=conformance)
            return await picker.start(stack, certificate if request.param == "tls" else None)

        yield start_one


@pytest.fixture
async def picker(start: StartPicker) -> Picker:
    """A picker with three instances."""
    started: Picker = await start()
    return started


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """Every request body mode of Envoy."""
    chosen: str = request.param
    return chosen
