"""The gRPC shell: one coroutine per ext_proc stream between Envoy, the exchange and the router. The only user of grpc.

Nothing that happens in a stream may cost a request. A bug or a message out of order is logged and counted, and the
stream ends in good order: Envoy then forwards the request by its own policy. Loads are given back in a synchronous
`finally`, since an `await` there is killed when Envoy cancels the stream.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from extproc import metrics, routing, wire
from extproc.config import RouteSettings
from extproc.errors import NoInstance
from extproc.exchange import Answer, Decide, Event, Exchange, Output, Prefilled, ProtocolViolation
from extproc.model import Reason
from extproc.pools import Pool
from extproc.router import Routed, Router

_log = logging.getLogger(__name__)

Metadata = tuple[tuple[str, str], ...]

# A 64 MiB body, the largest that the shipped Envoy configuration lets through, and room for its envelope.
MAX_MESSAGE_BYTES = 80 * 1024 * 1024
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # a second server on a taken port must fail, not share it silently
)
# Names that gateways probe: the whole server, Kubernetes' two probes, the Endpoint Picker Protocol's, and the service.
READINESS = ("", "readiness", "inference-extension", wire.SERVICE)
LIVENESS = "liveness"


@dataclass(slots=True)
class _Stream:
    """What one stream holds: the order of its messages, the route it came by, the load it owes."""

    metadata: Metadata
    exchange: Exchange = field(default_factory=Exchange)
    pool: Pool | None = None
    routed: Routed | None = None

    def close(self) -> None:
        """Give the load back; synchronous, and called on every way out."""
        if self.routed is not None:
            self.routed.ticket.release()


class Processor:
    """`envoy.service.ext_proc.v3.ExternalProcessor`.

    `route` turns a stream's gRPC metadata into the route's settings and never fails; `on_routed` hears of decisions.
    """

    def __init__(
        self,
        router: Router,
        pools: Mapping[str, Pool],
        route: Callable[[Metadata], RouteSettings],
        on_routed: Callable[[Pool, Routed], None],
    ) -> None:
        self._router = router
        self._pools = pools
        self._route = route
        self._on_routed = on_routed
        self.streams = 0  # open at the moment

    def handler(self) -> grpc.GenericRpcHandler:
        """What `grpc.aio.Server.add_generic_rpc_handlers` takes."""
        method = grpc.stream_stream_rpc_method_handler(
            self.process, request_deserializer=wire.decode, response_serializer=wire.encode
        )
        return grpc.method_handlers_generic_handler(wire.SERVICE, {wire.METHOD: method})

    async def process(self, events: AsyncIterator[Event], context: Any) -> AsyncIterator[Answer]:
        """One stream: one request of a client, for as long as Envoy is busy with it."""
        stream = _Stream(_metadata(context))
        self.streams += 1
        metrics.STREAMS.inc()
        try:
            async for event in events:
                outputs = deque(stream.exchange.receive(event))
                while outputs:
                    output = outputs.popleft()
                    if isinstance(output, Decide):
                        outputs.extend(await self._decide(stream, output))
                    elif isinstance(output, Prefilled):
                        self._prefilled(stream, output)
                    else:
                        yield output
        except ProtocolViolation as violation:
            metrics.EXCEPTIONS.labels("exchange").inc()
            _log.warning("Envoy sent a message out of order (%s); its request goes on without us", violation)
        except Exception:
            metrics.EXCEPTIONS.labels("stream").inc()
            _log.exception("a bug ended an ext_proc stream; its request goes on without us")
        finally:
            stream.close()
            self.streams -= 1
            metrics.STREAMS.dec()

    async def _decide(self, stream: _Stream, wanted: Decide) -> list[Output]:
        started = time.perf_counter()
        route = self._route(stream.metadata)
        pool = stream.pool = self._pools.get(route.cluster)
        if pool is None:
            metrics.DECISIONS.labels(route.cluster, route.policy, Reason.NO_POOL.value).inc()
            return stream.exchange.decided(routing.nowhere(Reason.NO_POOL))
        path = wanted.headers.get(":path", "")
        try:
            routed = stream.routed = await self._router.pick(
                pool, route.policy, route.options, path, wanted.body, wanted.degraded, now=time.monotonic()
            )
        except NoInstance as error:
            metrics.DECISIONS.labels(pool.name, route.policy, Reason.NO_INSTANCE.value).inc()
            return stream.exchange.refused(error, routing.nowhere(Reason.NO_INSTANCE))
        self._on_routed(pool, routed)
        elapsed = time.perf_counter() - started
        choice = routed.choice
        metrics.DECISIONS.labels(pool.name, choice.policy, choice.reason.value).inc()
        metrics.DECISION_SECONDS.labels(pool.name).observe(elapsed)
        metrics.PROMPT_BYTES.labels(pool.name).inc(choice.prompt)
        metrics.HIT_BYTES.labels(pool.name).inc(choice.hit)
        metrics.BEST_HIT_BYTES.labels(pool.name).inc(choice.best_hit)
        return stream.exchange.decided(routing.to(choice, elapsed * 1000))

    def _prefilled(self, stream: _Stream, answered: Prefilled) -> None:
        """The engine has answered: its prefill is over, and Envoy may have reached another host than the chosen one."""
        if stream.pool is None or stream.routed is None:
            return
        ticket, chosen = stream.routed.ticket, stream.routed.choice.instance
        ticket.prefilled()
        if answered.served is not None and not stream.pool.reached(chosen, answered.served, time.monotonic()):
            metrics.SERVED_ELSEWHERE.labels(stream.pool.name).inc()
            ticket.move(replace(chosen, address=answered.served).name)


class Health:
    """gRPC health (`Check` and `Watch`) under every name that gateways ask for."""

    def __init__(self) -> None:
        self._servicer = health.aio.HealthServicer()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve health on this server too."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def set(self, *, ready: bool) -> None:
        """Ready or not, the process is alive: a draining one must not be killed for failing its liveness probe."""
        serving = health_pb2.HealthCheckResponse.SERVING
        await self._servicer.set(LIVENESS, serving)
        for name in READINESS:
            await self._servicer.set(name, serving if ready else health_pb2.HealthCheckResponse.NOT_SERVING)


def _metadata(context: Any) -> Metadata:
    return tuple((key, value) for key, value in context.invocation_metadata() or () if key.startswith("x-smetric-"))
