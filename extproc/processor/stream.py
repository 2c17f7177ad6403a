"""What one ext_proc stream does beside answering Envoy: has a destination chosen and prompts prefilled, notes results.

Owns what a stream holds while a request is served, and when it gives it back; also who prefills next where an instance
could not. Refuses to know gRPC (`server.py`), the order of Envoy's messages (`exchange.py`) and how an instance is
chosen (`routing/router.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from extproc.base import headers, metrics
from extproc.base.errors import BodyTimeout, NoInstance, Shed
from extproc.base.metrics import series
from extproc.base.model import Disaggregation, Gateway, Instance, Reason
from extproc.processor import destination
from extproc.processor.body_budget import BodyBudget
from extproc.processor.early_ends import EarlyEnds
from extproc.processor.exchange import Exchange, ProtocolViolation
from extproc.processor.messages import Decide, Output, Prefill, Prefilled, Seen
from extproc.processor.prefiller import Outcome, Prefiller, PrefillFailed
from extproc.processor.routes import Metadata
from extproc.processor.shared_token import Access
from extproc.requests.apis import models_named
from extproc.requests.responses import IdReader
from extproc.routing import digests
from extproc.routing.disaggregation.bodies import decode_body
from extproc.routing.disaggregation.halves import budget_ms
from extproc.routing.pools.admission import Subset
from extproc.routing.pools.ejections import ERRORS
from extproc.routing.pools.loads import PairTicket
from extproc.routing.pools.pool import Pool
from extproc.routing.query import Ask, Query, explicit_turn
from extproc.routing.route_settings import RouteSettings
from extproc.routing.router import Decision, Router

_log = logging.getLogger(__name__)

# How long we collect a FULL_DUPLEX_STREAMED body: Envoy's message timer does not run there. The largest that we
# collect, 64 MiB, takes nine minutes at 1 Mbit/s.
BODY_S = 600.0
# How long a request may be in doubt that Envoy may hold back for ever: a WebSocket is answered within milliseconds.
DOUBT_S = 1.0

_REFUSALS = {NoInstance: Reason.NO_INSTANCE, Shed: Reason.SHED, BodyTimeout: Reason.BODY_TIMEOUT}

Act = Decide | Prefill | Prefilled | Seen  # outputs of an exchange that are no answers


@dataclass(slots=True)
class Services:
    """What all streams share.

    `route` turns a stream's gRPC metadata into the route's settings and never fails; `on_routed` hears of decisions.
    `conformance` lets requests choose their instance and tells clients who answered: for tests of gateways alone.
    """

    router: Router
    pools: Mapping[str, Pool]
    route: Callable[[Metadata], RouteSettings]
    on_routed: Callable[[Pool, Decision], None]
    prefiller: Prefiller
    conformance: bool = False
    access: Access = field(default_factory=Access)
    gateway: Gateway = field(default_factory=Gateway)
    early_ends: EarlyEnds = field(default_factory=EarlyEnds)
    body_budget: BodyBudget = field(default_factory=BodyBudget)


class Stream:
    """One stream: the order of its messages, the route that it came by, the load that it owes."""

    def __init__(self, services: Services, metadata: Metadata) -> None:
        served, most = headers.CONFORMANCE_SERVED if services.conformance else None, services.route(metadata).max_body
        self.exchange = Exchange(served, services.gateway, max_body=most, budget=services.body_budget)
        self._services = services
        self._metadata = metadata
        self._pool: Pool | None = None
        self._routed: Decision | None = None
        self._ask = Ask()
        self._decision_s = 0.0  # what the decision took, in seconds
        self._keeper = ""  # name of the instance that serves the request, and keeps its response
        self._response = IdReader()
        self._since = time.monotonic()  # of what `patience_s` counts
        self._answered_at: float | None = None  # when the response's headers came

    async def act(self, wanted: Act) -> list[Output]:
        """Do what the exchange wants done; returns what is to be done next, in order."""
        match wanted:
            case Decide():
                return await self._decide(wanted)
            case Prefill():
                return await self._prefill(wanted)
            case Prefilled():
                self._answered(wanted)
            case Seen():
                await self._seen(wanted)
        return []

    @property
    def patience_s(self) -> float | None:
        """How long to wait for Envoy's next message; None: for as long as it takes."""
        limit = BODY_S if self.exchange.collecting else DOUBT_S if self.exchange.in_doubt else None
        return None if limit is None else self._since + limit - time.monotonic()

    def close(self) -> None:
        """Give the load and the body's bytes back; synchronous, and called on every way out."""
        self.exchange.close()
        if self._routed is None or self._pool is None:
            return
        self._routed.ticket.release()
        now, early_ends = time.monotonic(), self._services.early_ends
        if self.exchange.over:
            early_ends.left(self._pool.name, now)
        elif self._answered_at is not None and self.exchange.unended and self._services.gateway.overrides is None:
            early_ends.streamed(self._pool.name, now - self._answered_at, now)

    async def _decide(self, wanted: Decide) -> list[Output]:
        started, route = time.perf_counter(), self._route()
        if wanted.degraded is Reason.BODY_TIMEOUT:
            return self._refuse(route, BodyTimeout(f"the request's body did not end within {BODY_S:g} s"))
        pools = [self._services.pools[name] for name in route.clusters if name in self._services.pools]
        if not pools:
            # Not by its name, which a client may choose where the YAML says %REQ(...)%: labels must stay few.
            metrics.DECISIONS.labels("", route.policy, Reason.NO_POOL.value).inc()
            return self.exchange.decided(destination.nowhere(Reason.NO_POOL))
        router = self._services.router
        self._ask = self._asked(wanted, route)
        pool, query = await router.read(pools, self._ask)
        self._pool = pool
        try:
            routed = self._routed = await router.pick(pool, route, self._ask, query, now=time.monotonic())
        except (NoInstance, Shed) as error:
            return self._refuse(route, error)
        self._decision_s = time.perf_counter() - started
        self._keeper, self.exchange.watching = routed.choice.instance.name, routed.query.stores
        if routed.choice.prefill is not None and route.disaggregation is Disaggregation.FILTER:
            return self.exchange.prefill(budget_ms(route.prefill_timeout_s))
        return self._send(pool, routed)

    async def _prefill(self, wanted: Prefill) -> list[Output]:
        """Send the request on once another instance has computed its prompt, or none could."""
        route, pool, routed = self._route(), self._pool, self._routed
        if pool is None or routed is None:
            raise ProtocolViolation("a prefill before the decision")
        while (instance := routed.choice.prefill) is not None:
            pool.ejections.tried(instance.address, time.monotonic())
            try:
                with metrics.PREFILL_SECONDS.labels(pool.name).time():
                    timeout_s = route.prefill_timeout_s
                    params = await self._services.prefiller.send(instance, wanted.headers, wanted.body, timeout_s)
            except PrefillFailed as failure:
                now = time.monotonic()
                _note_failure(pool, instance, failure, now)
                hopeless = failure.outcome is Outcome.REJECTED
                try:
                    routed = self._services.router.again(pool, route, self._ask, routed, hopeless=hopeless, now=now)
                except NoInstance as error:
                    return self._refuse(route, error)
                self._routed = routed
            else:
                metrics.PREFILLS.labels(pool.name, Outcome.OK.value).inc()
                pool.ejections.cleared(instance.address)
                _prefilled(routed)
                return self._send(pool, routed, decode_body(wanted.body, params))
        return self._send(pool, routed)

    def _send(self, pool: Pool, routed: Decision, body: bytes | None = None) -> list[Output]:
        self._services.on_routed(pool, routed)
        pool.ejections.tried(routed.choice.instance.address, time.monotonic())
        _count(pool, routed, self._decision_s)
        self._since = time.monotonic()
        # A stream lives as long as the reply; body and keys need not, and in thousands of streams they are gigabytes.
        self._ask, self._routed = Ask(), replace(routed, query=Query(), held={}, shadows=())
        route = self._route()
        sidecar = route.disaggregation is Disaggregation.SIDECAR
        chosen = pool.name if len(route.clusters) > 1 else None
        told = digests.told(routed.query, pool.block_bytes)
        mutation = destination.to(routed.choice, self._decision_s * 1000, sidecar=sidecar, pool=chosen, digests=told)
        outputs = self.exchange.decided(mutation, body)
        for name in self.exchange.left_out:
            metrics.HEADERS_LEFT_OUT.labels(pool.name, name).inc()
        return outputs

    def _refuse(self, route: RouteSettings, error: NoInstance | Shed | BodyTimeout) -> list[Output]:
        reason = _REFUSALS[type(error)]
        pool = self._pool.name if self._pool is not None else ""
        metrics.DECISIONS.labels(pool, route.policy, reason.value).inc()
        return self.exchange.refused(error, destination.nowhere(reason))

    def _answered(self, answered: Prefilled) -> None:
        """The engine has answered: Envoy may have reached another host than the chosen one.

        Where Envoy names no host, because it reached none or is not asked to, the answer counts as the chosen one's.
        """
        if self._pool is None or self._routed is None:
            return
        self._answered_at = time.monotonic()
        ticket, chosen = self._routed.ticket, self._routed.choice.instance
        _prefilled(self._routed)
        served = answered.served or chosen.address
        if not self._pool.reached(chosen, served, time.monotonic(), erred=answered.status in ERRORS):
            metrics.SERVED_ELSEWHERE.labels(self._pool.name).inc()
            self._keeper = replace(chosen, address=served).name
            ticket.move(self._keeper)

    async def _seen(self, seen: Seen) -> None:
        """Note who keeps a response before the client learns its id, and so before it can refer to it."""
        response = self._response.feed(seen.data)
        if response is not None and self._pool is not None:
            await self._services.router.remember(self._pool, response, self._keeper)
        if response is not None or self._response.hopeless:
            self.exchange.watching = False

    def _asked(self, wanted: Decide, route: RouteSettings) -> Ask:
        body, degraded = wanted.body, wanted.degraded
        models: Sequence[str] = ()
        if body is not None and len(body) > route.max_body:
            models = models_named(body) if len(route.clusters) > 1 else ()
            body, degraded = None, Reason.BODY_TOO_LARGE
        path, turn = wanted.headers.get(":path", ""), explicit_turn(wanted.headers)
        return Ask(path, body, degraded, turn, models, self._subset(wanted))

    def _route(self) -> RouteSettings:
        return self._services.route(self._metadata)

    def _subset(self, wanted: Decide) -> Subset | None:
        """The gateway's hint, unless a conformance test says where its request shall go."""
        selection = wanted.headers.get(headers.CONFORMANCE_SELECTION) if self._services.conformance else None
        return Subset([selection]) if selection else wanted.subset


def _note_failure(pool: Pool, instance: Instance, failure: PrefillFailed, now: float) -> None:
    metrics.PREFILLS.labels(pool.name, failure.outcome.value).inc()
    _log.info("instance %s of pool %s did not prefill: %s", instance.name, pool.name, failure)
    if not failure.answered:
        pool.ejections.unreachable(instance.address, now)
    elif failure.outcome is Outcome.REFUSED:
        pool.ejections.erred(instance.address, now)


def _prefilled(routed: Decision) -> None:
    """The instance that prefills for another is done. One that does both answers before it prefills, if it streams."""
    if isinstance(routed.ticket, PairTicket):
        routed.ticket.prefilled()
    else:
        routed.ticket.answered()


def _count(pool: Pool, routed: Decision, decision_s: float) -> None:
    choice = routed.choice
    series(metrics.DECISIONS, pool.name, choice.policy, choice.reason.value).inc()
    series(metrics.DECISION_SECONDS, pool.name).observe(decision_s)
    series(metrics.PROMPT_BYTES, pool.name).inc(choice.prompt)
    series(metrics.HIT_BYTES, pool.name).inc(choice.hit)
    series(metrics.BEST_HIT_BYTES, pool.name).inc(choice.best_hit)
    for opinion in routed.shadows:
        series(metrics.SHADOW_DECISIONS, pool.name, opinion.policy, str(opinion.agrees).lower()).inc()
        series(metrics.SHADOW_HIT_BYTES, pool.name, opinion.policy).inc(opinion.hit)
