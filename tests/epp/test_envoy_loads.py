"""Loads through a real Envoy: a request counts for as long as an engine works on it, in every body mode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from extproc.base.model import Gateway
from tests.support.envoy_yaml import Yaml
from tests.support.real_envoy import END, HEALTH, Change, RealEnvoy, filter_of, manager_of, mode, post

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASKS = b" HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: "
UPGRADE = b"GET /v1/realtime" + ASKS + b"websocket\r\n\r\n"
UDP = b"GET /.well-known/masque/udp/10.0.0.1/80/" + ASKS + b"connect-udp\r\n\r\n"
CONNECT = b"CONNECT x:80 HTTP/1.1\r\nhost: x:80\r\n\r\n"
GET = b"GET /v1/responses/resp_1?stream=true HTTP/1.1\r\nhost: x\r\n\r\n"
DUPLEX = "FULL_DUPLEX_STREAMED"
UPSTREAM = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
TYPE = f"type.googleapis.com/{UPSTREAM}"


def forbidding(change: Change) -> Change:
    """The same without `allow_mode_override`."""

    def forbid(listener: Yaml) -> None:
        change(listener)
        filter_of(listener)["allow_mode_override"] = False

    return forbid


def tunnels(change: Change, to: str = "vllm") -> Change:
    """The same with upgrades and CONNECT let in, over HTTP/2 too."""

    def let_in(listener: Yaml) -> None:
        change(listener)
        manager = manager_of(listener)
        manager["upgrade_configs"] = [{"upgrade_type": one} for one in ("websocket", "connect-udp", "CONNECT")]
        manager["http2_protocol_options"] = {"allow_connect": True}
        (host,) = manager["route_config"]["virtual_hosts"]
        for route in host["routes"]:
            route["route"]["cluster"] = to
        host["routes"].insert(0, {"match": {"connect_matcher": {}}, "route": {"cluster": to, "timeout": "0s"}})

    return let_in


def bridge(to: str) -> Change:
    """A listener that passes all on to another one by HTTP/2: what a client that speaks it would do."""

    def passing(listener: Yaml) -> None:
        del manager_of(listener)["http_filters"][0]
        tunnels(lambda _: None, to=f"{to} by HTTP/2")(listener)

    return passing


def bridges(envoy: RealEnvoy) -> Change:
    """The clusters that bridges lead to."""

    def add(tree: Yaml) -> None:
        for name in BRIDGED:
            options = {"@type": TYPE, "explicit_http_config": {"http2_protocol_options": {"allow_connect": True}}}
            address = {"socket_address": {"address": "127.0.0.1", "port_value": envoy.ports[name]}}
            cluster = {"name": f"{name} by HTTP/2", "type": "STATIC"}
            cluster["load_assignment"] = {
                "cluster_name": cluster["name"],
                "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
            }
            cluster["typed_extension_protocol_options"] = {UPSTREAM: options}
            tree["static_resources"]["clusters"].append(cluster)

    return add


# What keeps the stream open by our asking, and what does by the operator's YAML.
ASKED = {name: mode(name) for name in ("NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL")}
WRITTEN = {
    "NONE, trailers": forbidding(mode("NONE", response_trailer_mode="SEND")),
    "duplex, trailers": mode(DUPLEX, response_trailer_mode="SEND"),
    "duplex, bodies": mode(DUPLEX, response_body_mode=DUPLEX, response_trailer_mode="SEND"),
    "duplex, shown": mode(DUPLEX, response_body_mode="STREAMED"),
}
# What `check` warns of (test_checks.py): here Envoy closes at the response's headers, and nothing that we say matters.
CLOSED = {"NONE, forbidden": forbidding(mode("NONE")), "duplex": mode(DUPLEX)}
FORBIDDEN = {"BUFFERED, forbidden": forbidding(mode("BUFFERED"))}
LISTENERS = ASKED | WRITTEN | CLOSED | FORBIDDEN
BRIDGED = ("BUFFERED", "duplex, trailers")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def envoy() -> AsyncIterator[RealEnvoy]:
    """One Envoy with a listener for each mode."""
    listeners = {name: tunnels(change) for name, change in LISTENERS.items()}
    envoy = RealEnvoy(listeners | {f"to {name}": bridge(name) for name in BRIDGED})
    envoy.change(bridges(envoy))
    async with envoy as running:
        yield running


@pytest.fixture(autouse=True)
def engine_that_waits(envoy: RealEnvoy) -> None:
    """Replies stream until the test lets them end."""
    envoy.engines[0].release.clear()


@pytest.mark.parametrize("listener", [*ASKED, *WRITTEN])
@pytest.mark.parametrize("request_bytes", [post(), GET], ids=["post", "get"])
async def test_a_reply_counts_until_it_ends(envoy: RealEnvoy, listener: str, request_bytes: bytes) -> None:
    """Headers and the first event have passed, and the engine works on: so does the load."""
    (engine,) = envoy.engines
    async with envoy.connect(listener) as client:
        await client.send(request_bytes)
        await client.until(b"hello\r\n")
        await _rests(envoy)
        assert (engine.running, envoy.in_flight()) == (1, 1)
        engine.release.set()
        await client.until(END)
        await envoy.until(lambda: envoy.in_flight() == 0)


@pytest.mark.parametrize("listener", [*ASKED, *WRITTEN])
async def test_a_client_that_hangs_up_gives_its_load_back(envoy: RealEnvoy, listener: str) -> None:
    """In the middle of the reply."""
    async with envoy.connect(listener) as client:
        await client.send(post())
        await client.until(b"hello\r\n")
        assert envoy.in_flight() == 1
    await envoy.until(lambda: envoy.in_flight() == 0)


@pytest.mark.parametrize("listener", [*CLOSED])
async def test_envoy_closes_early_where_check_warns(envoy: RealEnvoy, listener: str) -> None:
    """Why `check` warns: the engine works, and no load says so. An Envoy that no longer does this needs no warning."""
    async with envoy.connect(listener) as client:
        await client.send(post())
        await client.until(b"hello\r\n")
        await envoy.until(lambda: envoy.in_flight() == 0)
        assert envoy.engines[0].running == 1


@pytest.mark.parametrize(
    "listener", [name for name in LISTENERS if name not in FORBIDDEN] + [f"to {name}" for name in BRIDGED]
)
@pytest.mark.parametrize("opening", [UPGRADE, UDP, CONNECT], ids=["websocket", "connect-udp", "connect"])
async def test_a_tunnel_is_answered_at_once(envoy: RealEnvoy, listener: str, opening: bytes) -> None:
    """Though its body never ends; and it counts while it lives, where Envoy does not close early."""
    async with envoy.connect(listener) as client:
        await client.send(opening)
        assert (await client.head()).split()[1] in ("101", "200")
        for word in (b"one", b"two"):
            await client.send(word)
            assert await client.until(word) == b"echo " + word
        if listener not in CLOSED:
            await _rests(envoy)
            assert envoy.in_flight() == 1
    await envoy.until(lambda: envoy.in_flight() == 0)
    await envoy.until(lambda: envoy.engines[0].running == 0)


@pytest.mark.parametrize("known", [None, False])
async def test_a_tunnel_that_envoy_holds_back_is_left_to_it(envoy: RealEnvoy, known: bool | None) -> None:
    """Buffered, and no override allowed: it goes on without us, at once where the YAML says so, else after a second."""
    envoy.served.services.gateway = Gateway(overrides=known)
    try:
        async with envoy.connect("BUFFERED, forbidden") as client:
            await client.send(UPGRADE)
            assert " 101 " in await client.head()
            await client.send(b"one")
            assert await client.until(b"one") == b"echo one"
        await envoy.until(lambda: envoy.in_flight() == 0)
    finally:
        envoy.served.services.gateway = Gateway()


@pytest.mark.parametrize("listener", [*ASKED, *WRITTEN, *FORBIDDEN])
async def test_a_request_of_grpc_is_not_waited_for(envoy: RealEnvoy, listener: str) -> None:
    """Its stream of messages may end after the reply's; one that ends before passes as well."""
    envoy.engines[0].release.set()
    request = post("/vllm.Engine/Generate", b"message", ["te: trailers"])
    request = request.replace(b"application/json", b"application/grpc")
    async with envoy.connect(listener) as client:
        await client.send(request)
        assert " 200 " in await client.head()
    assert envoy.engines[0].bodies[-1] == b"message"
    await envoy.until(lambda: envoy.in_flight() == 0)


async def test_envoy_has_nothing_to_complain_about(envoy: RealEnvoy) -> None:
    """After all of the above: no stream failed, and no message of ours was out of place."""
    for name in ("streams_failed", "spurious_msgs_received", "message_timeouts", "rejected_header_mutations"):
        assert await envoy.stats(f"ext_proc.{name}") == {}


async def _rests(envoy: RealEnvoy) -> None:
    """What Envoy does at once is done: other requests went the same way meanwhile, and their loads are back."""
    for _ in range(2):
        await envoy.ask("BUFFERED", HEALTH)
    await asyncio.sleep(0.05)
