"""What a stream does for Envoy's messages, over real gRPC: decisions, loads, results, and what it lets go of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
from prometheus_client import generate_latest

from extproc.base import metrics
from extproc.processor import server
from extproc.processor.stream import Stream
from extproc.routing.route_settings import RouteSettings
from tests.support.ext_proc_client import BODY, Served, answered, ask, body, headers, until_idle


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with Served().run() as running:
        yield running


async def test_one_exchange(served: Served) -> None:
    """The destination comes with the body's answer; load and bytes to prefill are held until the stream ends."""
    stream = served.stream()
    _, decided = await ask(stream, headers(), body(BODY))
    metadata = decided["dynamic_metadata"]
    assert metadata["envoy.lb"]["x-gateway-destination-endpoint"] == "10.0.0.0:8000,10.0.0.1:8000"
    explained = metadata["smetric"]
    assert (explained["instance"], explained["reason"], explained["turn"]) == ("10.0.0.0:8000", "first_turn", 0)
    assert {"policy", "hit_bytes", "best_hit_bytes", "history_bytes", "prompt_bytes"} <= explained.keys()
    assert {"load", "mean_load", "decision_ms"} <= explained.keys()
    assert served.loads.view("pool", ["10.0.0.0:8000"]) == ([1], [int(explained["prompt_bytes"])])
    await ask(stream, answered())  # an engine that streams sends its headers before it prefills
    assert served.loads.view("pool", ["10.0.0.0:8000"]) == ([1], [int(explained["prompt_bytes"])])
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF
    assert served.loads.snapshot("pool") == {}
    assert served.routed == ["10.0.0.0:8000"]


async def test_an_instance_that_envoy_could_not_reach(served: Served) -> None:
    """The load moves to who answered, and the next decision avoids who did not."""
    stream = served.stream()
    _, decided, _ = await ask(stream, headers(), body(BODY), answered(served_by="10.0.0.1:8000"))
    prompt = int(decided["dynamic_metadata"]["smetric"]["prompt_bytes"])
    assert served.loads.view("pool", ["10.0.0.1:8000"]) == ([1], [prompt])
    await ask(served.stream(), headers(), body(BODY))
    assert served.routed == ["10.0.0.0:8000", "10.0.0.1:8000"]
    stream.cancel()


@pytest.mark.parametrize("names_host", [True, False])
@pytest.mark.parametrize(
    ("statuses", "ejected"),
    [
        ([503, 503], True),
        ([500, 504], True),
        ([503], False),
        ([503, 200, 503], False),
        ([501, 501], False),
        ([400, 400], False),
    ],
)
async def test_an_instance_that_answers_with_errors(
    served: Served, statuses: Sequence[int], *, ejected: bool, names_host: bool
) -> None:
    """Two errors of a server in a row and the instance is ejected, whether or not Envoy says who answered."""
    first, second = served.pool.instances
    served.pool.instances = [first]
    for status in statuses:
        await ask(served.stream(), headers(), body(BODY), answered(first.address if names_host else None, status))
    served.pool.instances = [first, second]
    candidates = served.pool.candidates(asyncio.get_running_loop().time())
    assert candidates == ([second] if ejected else [first, second])


async def test_a_stream_lets_go_of_the_body(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply takes minutes; what a stream holds meanwhile is a choice and a load, not the request."""
    made: list[Any] = []
    monkeypatch.setattr(server, "Stream", lambda *arguments: made.append(Stream(*arguments)) or made[-1])
    stream = served.stream()
    await ask(stream, headers(), body(BODY), answered())
    (held,) = made
    assert held._routed.choice.prompt > 0
    assert (held._ask.body, held.exchange._body) == (None, [])
    assert not held._routed.query.chain
    assert not held._routed.held
    stream.cancel()


async def test_an_unknown_pool_is_left_to_envoy(served: Served) -> None:
    """No destination is named, a client's own is removed, and the reason is there to see."""
    (decided,) = await ask(served.stream(("x-smetric-cluster", "elsewhere")), headers(end=True))
    mutation = decided["request_headers"]["response"]["header_mutation"]
    removed = ["x-gateway-destination-endpoint", "x-data-parallel-rank", "x-prefiller-host-port"]
    assert mutation == {"remove_headers": removed}
    assert decided["dynamic_metadata"] == {"smetric": {"reason": "no_pool"}}


async def test_an_empty_pool_is_answered_with_503() -> None:
    """The one request that we refuse, in OpenAI's form."""
    async with Served(instances=0).run() as served:
        _, refused = await ask(served.stream(), headers(), body(BODY))
    assert refused["immediate_response"]["status"]["code"] == "ServiceUnavailable"
    assert refused["dynamic_metadata"]["smetric"] == {"reason": "no_instance"}


async def test_shadow_policies_are_counted_and_do_not_act(served: Served) -> None:
    """Their opinions are in the metrics; the decision is the acting policy's."""
    route = RouteSettings("pool", shadows={"round-robin": {}, "least-loaded": {}})
    served.services.route = lambda _: route
    before = {
        (policy, agrees): metrics.SHADOW_DECISIONS.labels("pool", policy, agrees)._value.get()
        for policy in route.shadows
        for agrees in ("true", "false")
    }
    streams = [served.stream() for _ in range(2)]
    for stream in streams:
        await ask(stream, headers(), body(BODY))
    seen = {key: metrics.SHADOW_DECISIONS.labels("pool", *key)._value.get() - count for key, count in before.items()}
    assert seen[("least-loaded", "true")] == 2
    assert sum(seen.values()) == 4
    for stream in streams:
        stream.cancel()
    await until_idle(served)


async def test_an_unknown_pool_makes_no_new_series(served: Served) -> None:
    """A pool's name may come from a client's header; the metrics must not grow with it."""
    for number in range(3):
        stream = served.stream(("x-smetric-cluster", f"pool-{number}"))
        await ask(stream, headers(end=True))
        stream.cancel()
    series = generate_latest(metrics.REGISTRY).decode()
    assert 'smetric_decisions_total{policy="smetric",pool="",reason="no_pool"}' in series
    assert "pool-1" not in series
    assert "_created" not in series


def test_the_series_of_an_instance_go_with_it() -> None:
    """Pods come and go for months."""
    metrics.IN_FLIGHT.labels("pool", "10.9.9.9:1").set(1)
    metrics.EVENT_STATE.labels("pool", "10.9.9.9:1", "exact").set(1)
    metrics.forget_instance("pool", "10.9.9.9:1")
    assert "10.9.9.9:1" not in generate_latest(metrics.REGISTRY).decode()
