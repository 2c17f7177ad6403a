"""The gRPC shell: one coroutine per ext_proc stream between Envoy, the exchange and the router. The only user of grpc.

Nothing that happens in a stream may cost a request. A bug or a message out of order is logged and counted, and the
stream ends in good order: Envoy then forwards the request by its own policy. Loads are given back in a synchronous
`finally`, since an `await` there is killed when Envoy cancels the stream.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from extproc.base import headers, metrics
from extproc.base.errors import BodyTimeout, NoInstance, Shed
from extproc.base.model import Disaggregation, Reason
from extproc.processor import destination, tls, wire
from extproc.processor.exchange import Exchange, ProtocolViolation
from extproc.processor.messages import Answer, Decide, Event, OutOfTime, Output, Prefill, Prefilled, Seen
from extproc.processor.prefiller import Outcome, Prefiller, PrefillFailed
from extproc.requests.responses import IdReader
from extproc.routing import disaggregation
from extproc.routing.disaggregation import PairTicket
from extproc.routing.pools.admission import Subset
from extproc.routing.pools.pool import Pool
from extproc.routing.pools.suspects import ERRORS
from extproc.routing.query import Ask, Query, explicit_turn
from extproc.routing.route import RouteSettings
from extproc.routing.router import Decision, Router

_log = logging.getLogger(__name__)

Metadata = tuple[tuple[str, str], ...]

# A 64 MiB body, the largest that the shipped Envoy configuration lets through, and room for its envelope.
MAX_MESSAGE_BYTES = 80 * 1024 * 1024
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),  # a second server on a taken port must fail, not share it silently
)
# How long we collect a FULL_DUPLEX_STREAMED body: Envoy's message timer does not run there. The largest that we
# collect, 64 MiB, takes nine minutes at 1 Mbit/s.
BODY_S = 600.0
# Names that gateways probe: the whole server, Kubernetes' two probes, the Endpoint Picker Protocol's, and the service.
READINESS = ("", "readiness", "inference-extension", wire.SERVICE)
LIVENESS = "liveness"


@dataclass(slots=True)
class _Stream:
    """What one stream holds: the order of its messages, the route it came by, the load it owes."""

    metadata: Metadata
    exchange: Exchange
    body_due: float  # on the loop's clock: when a body that we collect must have ended
    pool: Pool | None = None
    routed: Decision | None = None
    ask: Ask = field(default_factory=Ask)
    decision_s: float = 0.0  # what the decision took, in seconds
    keeper: str = ""  # name of the instance that serves the request, and keeps its response
    response: IdReader = field(default_factory=IdReader)

    def close(self) -> None:
        """Give the load back; synchronous, and called on every way out."""
        if self.routed is not None:
            self.routed.ticket.release()


class Processor:
    """`envoy.service.ext_proc.v3.ExternalProcessor`.

    `route` turns a stream's gRPC metadata into the route's settings and never fails; `on_routed` hears of decisions.
    `conformance` lets requests choose their instance and tells clients who answered: for tests of gateways alone.
    """

    def __init__(
        self,
        router: Router,
        pools: Mapping[str, Pool],
        route: Callable[[Metadata], RouteSettings],
        on_routed: Callable[[Pool, Decision], None],
        prefiller: Prefiller,
        *,
        conformance: bool = False,
    ) -> None:
        self._router = router
        self._pools = pools
        self._route = route
        self._on_routed = on_routed
        self._prefiller = prefiller
        self._conformance = conformance
        self.streams = 0  # open at the moment

    def handler(self) -> grpc.GenericRpcHandler:
        """What `grpc.aio.Server.add_generic_rpc_handlers` takes."""
        method = grpc.stream_stream_rpc_method_handler(
            self.process, request_deserializer=wire.decode, response_serializer=wire.encode
        )
        return grpc.method_handlers_generic_handler(wire.SERVICE, {wire.METHOD: method})

    async def process(self, events: AsyncIterator[Event], context: Any) -> AsyncIterator[Answer]:
        """One stream: one request of a client, for as long as Envoy is busy with it."""
        exchange = Exchange(headers.CONFORMANCE_SERVED if self._conformance else None)
        stream = _Stream(_metadata(context), exchange, asyncio.get_running_loop().time() + BODY_S)
        self.streams += 1
        metrics.STREAMS.inc()
        try:
            async for event in _in_time(events, stream):
                outputs = deque(stream.exchange.receive(event))
                while outputs:
                    output = outputs.popleft()
                    if isinstance(output, Decide):
                        outputs.extend(await self._decide(stream, output))
                    elif isinstance(output, Prefill):
                        outputs.extend(await self._prefill(stream, output))
                    elif isinstance(output, Prefilled):
                        self._answered(stream, output)
                    elif isinstance(output, Seen):
                        await self._seen(stream, output)
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
        if wanted.degraded is Reason.BODY_TIMEOUT:
            return self._refuse(stream, route, BodyTimeout(f"the request's body did not end within {BODY_S:g} s"))
        pools = [self._pools[name] for name in route.clusters if name in self._pools]
        if not pools:
            # Not by its name, which a client may choose where the YAML says %REQ(...)%: labels must stay few.
            metrics.DECISIONS.labels("", route.policy, Reason.NO_POOL.value).inc()
            return stream.exchange.decided(destination.nowhere(Reason.NO_POOL))
        pool = stream.pool = self._router.pool_for(pools, wanted.body)
        path, turn = wanted.headers.get(":path", ""), explicit_turn(wanted.headers)
        stream.ask = Ask(path, wanted.body, wanted.degraded, turn, self._subset(wanted))
        try:
            routed = stream.routed = await self._router.pick(pool, route, stream.ask, now=time.monotonic())
        except (NoInstance, Shed) as error:
            return self._refuse(stream, route, error)
        stream.decision_s = time.perf_counter() - started
        stream.keeper, stream.exchange.watching = routed.choice.instance.name, routed.query.stores
        if routed.choice.prefill is not None and route.disaggregation is Disaggregation.FILTER:
            return stream.exchange.prefill(disaggregation.budget_ms(route.prefill_timeout_s))
        return self._send(pool, stream, routed)

    async def _prefill(self, stream: _Stream, wanted: Prefill) -> list[Output]:
        """Send the request on once another instance has computed its prompt, or none could."""
        route, pool, routed = self._route(stream.metadata), stream.pool, stream.routed
        if pool is None or routed is None:
            raise ProtocolViolation("a prefill before the decision")
        while (instance := routed.choice.prefill) is not None:
            pool.suspects.tried(instance.address, time.monotonic())
            try:
                with metrics.PREFILL_SECONDS.labels(pool.name).time():
                    params = await self._prefiller.send(instance, wanted.headers, wanted.body, route.prefill_timeout_s)
            except PrefillFailed as failure:
                metrics.PREFILLS.labels(pool.name, failure.outcome.value).inc()
                _log.info("instance %s of pool %s did not prefill: %s", instance.name, pool.name, failure)
                now, hopeless = time.monotonic(), failure.outcome is Outcome.REJECTED
                if not failure.answered:
                    pool.suspects.unreachable(instance.address, now)
                elif failure.outcome is Outcome.REFUSED:
                    pool.suspects.erred(instance.address, now)
                try:
                    routed = self._router.again(pool, route, stream.ask, routed, hopeless=hopeless, now=now)
                except NoInstance as error:
                    return self._refuse(stream, route, error)
                stream.routed = routed
            else:
                metrics.PREFILLS.labels(pool.name, Outcome.OK.value).inc()
                pool.suspects.cleared(instance.address)
                _prefilled(routed)
                return self._send(pool, stream, routed, disaggregation.decode_body(wanted.body, params))
        return self._send(pool, stream, routed)

    def _send(self, pool: Pool, stream: _Stream, routed: Decision, body: bytes | None = None) -> list[Output]:
        self._on_routed(pool, routed)
        choice, elapsed = routed.choice, stream.decision_s
        pool.suspects.tried(choice.instance.address, time.monotonic())
        metrics.DECISIONS.labels(pool.name, choice.policy, choice.reason.value).inc()
        metrics.DECISION_SECONDS.labels(pool.name).observe(elapsed)
        metrics.PROMPT_BYTES.labels(pool.name).inc(choice.prompt)
        metrics.HIT_BYTES.labels(pool.name).inc(choice.hit)
        metrics.BEST_HIT_BYTES.labels(pool.name).inc(choice.best_hit)
        for opinion in routed.shadows:
            metrics.SHADOW_DECISIONS.labels(pool.name, opinion.policy, str(opinion.agrees).lower()).inc()
            metrics.SHADOW_HIT_BYTES.labels(pool.name, opinion.policy).inc(opinion.hit)
        # A stream lives as long as the reply; body and keys need not, and in thousands of streams they are gigabytes.
        stream.ask, stream.routed = Ask(), replace(routed, query=Query(), held={}, shadows=())
        route = self._route(stream.metadata)
        sidecar = route.disaggregation is Disaggregation.SIDECAR
        chosen = pool.name if len(route.clusters) > 1 else None
        return stream.exchange.decided(destination.to(choice, elapsed * 1000, sidecar=sidecar, pool=chosen), body)

    def _refuse(self, stream: _Stream, route: RouteSettings, error: NoInstance | Shed | BodyTimeout) -> list[Output]:
        reason = _REFUSALS[type(error)]
        pool = stream.pool.name if stream.pool is not None else ""
        metrics.DECISIONS.labels(pool, route.policy, reason.value).inc()
        return stream.exchange.refused(error, destination.nowhere(reason))

    def _subset(self, wanted: Decide) -> Subset | None:
        """The gateway's hint, unless a conformance test says where its request shall go."""
        selection = wanted.headers.get(headers.CONFORMANCE_SELECTION) if self._conformance else None
        return Subset([selection]) if selection else wanted.subset

    def _answered(self, stream: _Stream, answered: Prefilled) -> None:
        """The engine has answered: Envoy may have reached another host than the chosen one.

        Where Envoy names no host, because it reached none or is not asked to, the answer counts as the chosen one's.
        """
        if stream.pool is None or stream.routed is None:
            return
        ticket, chosen = stream.routed.ticket, stream.routed.choice.instance
        _prefilled(stream.routed)
        served = answered.served or chosen.address
        if not stream.pool.reached(chosen, served, time.monotonic(), erred=answered.status in ERRORS):
            metrics.SERVED_ELSEWHERE.labels(stream.pool.name).inc()
            stream.keeper = replace(chosen, address=served).name
            ticket.move(stream.keeper)

    async def _seen(self, stream: _Stream, seen: Seen) -> None:
        """Note who keeps a response before the client learns its id, and so before it can refer to it."""
        response = stream.response.feed(seen.data)
        if response is not None and stream.pool is not None:
            await self._router.remember(stream.pool, response, stream.keeper)
        if response is not None or stream.response.hopeless:
            stream.exchange.watching = False


_REFUSALS = {NoInstance: Reason.NO_INSTANCE, Shed: Reason.SHED, BodyTimeout: Reason.BODY_TIMEOUT}


async def _in_time(events: AsyncIterator[Event], stream: _Stream) -> AsyncIterator[Event]:
    """The events; where a body that we collect does not end in time, that is the last of them."""
    while True:
        try:
            if stream.exchange.collecting:
                async with asyncio.timeout_at(stream.body_due):
                    event = await anext(events)
            else:
                event = await anext(events)
        except StopAsyncIteration:
            return
        except TimeoutError:
            yield OutOfTime()
            return
        yield event


class GrpcHealth:
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


def credentials(certificates: tls.Source) -> grpc.ServerCredentials:
    """TLS with ALPN h2, by the certificate that is good at the moment of each handshake."""

    def fetch() -> grpc.ServerCertificateConfiguration:
        pair = certificates()
        return grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)])

    return grpc.dynamic_ssl_server_credentials(fetch(), fetch)


def _metadata(context: Any) -> Metadata:
    return tuple((key, value) for key, value in context.invocation_metadata() or () if key.startswith("x-smetric-"))


def _prefilled(routed: Decision) -> None:
    """The instance that prefills for another is done. One that does both answers before it prefills, if it streams."""
    if isinstance(routed.ticket, PairTicket):
        routed.ticket.prefilled()
