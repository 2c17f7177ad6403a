"""From a request to an instance. `Router.pick` reads top to bottom; its only await is the index.

Everything between reading the loads and counting the request is synchronous, so no two decisions of one process can
see the same idle instance. What cannot be read is routed by load alone, with the reason; only a request that no
instance may take, or that the route sheds, is an error.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from extproc.base.errors import IndexUnavailable, NoInstance, Shed
from extproc.base.model import Choice, Instance, Reason
from extproc.index import Index
from extproc.requests.paths import response_in
from extproc.routing import disaggregation
from extproc.routing.disaggregation import PairTicket
from extproc.routing.policies import Verdict, View, least_loaded, lowest, registry
from extproc.routing.pools import admission
from extproc.routing.pools.admission import Admission
from extproc.routing.pools.loads import Loads, Ticket
from extproc.routing.pools.pool import Pool
from extproc.routing.query import Ask, Query, pool_for, read
from extproc.routing.route import RouteSettings
from extproc.routing.shadow import Opinion, opinions

_log = logging.getLogger(__name__)

FALLBACKS = 2  # with one destination alone, Envoy's retry may hit the dead host again
RESPONSE_TTL_S = 24 * 3600  # how long it is remembered who keeps a response: people go on the next day at most


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice, the load that it holds until `ticket.release()`, and what it was made from.

    `choice.computes` is about to cache `query.chain`. `held` is in prompt blocks, by instance name.
    """

    choice: Choice
    ticket: Ticket | PairTicket
    query: Query
    held: Mapping[str, int]
    shadows: tuple[Opinion, ...] = ()  # what other policies would have chosen

    @property
    def chain(self) -> Sequence[int]:
        return self.query.chain


class Router:
    """Routes the requests of all pools. It remembers no session: the turn comes from the request itself."""

    def __init__(self, index: Index, loads: Loads, seed: Callable[[], int] = lambda: 0) -> None:
        """`seed` draws 64 random bits for policies that want them."""
        self._index = index
        self._loads = loads
        self._seed = seed

    async def pick(self, pool: Pool, route: RouteSettings, ask: Ask, *, now: float) -> Decision:
        """Choose an instance and count the request there. `now` is in seconds, of any monotonic clock.

        Raises NoInstance where nobody is admitted, Shed where all are at their limit, nothing else whatever the body.
        """
        query = self.query(pool, ask)
        if query.response is not None:
            query = await self._recalled(pool, query)
        held: Mapping[str, int] = {}
        if query.chain:
            try:
                held = await self._index.match(pool.name, query.chain)
                pool.agreement.note(query.turn, len(query.chain), matched=bool(held))
            except IndexUnavailable:
                query = replace(query, degraded=Reason.INDEX_UNAVAILABLE)
        return self.decide(pool, route, query, held, Admission(ask.subset, route.max_load), now=now)

    def again(
        self, pool: Pool, route: RouteSettings, ask: Ask, routed: Decision, *, hopeless: bool = False, now: float
    ) -> Decision:
        """Choose anew where `routed.choice.prefill` could not prefill; gives the load of that choice back.

        After `disaggregation.ATTEMPTS` failures, or where more are `hopeless`, the one that decodes computes the prompt
        itself. Raises NoInstance.
        """
        routed.ticket.release()
        failed = routed.query.failed | {routed.choice.computes.name}
        divisible = not hopeless and len(failed) < disaggregation.ATTEMPTS
        query = replace(routed.query, failed=failed, divisible=divisible)
        return self.decide(pool, route, query, routed.held, Admission(ask.subset), now=now)

    def pool_for(self, pools: Sequence[Pool], body: bytes | None) -> Pool:
        """The pool that serves the request's model. See `query.pool_for`."""
        return pool_for(pools, self._index.adapters, body)

    def query(self, pool: Pool, ask: Ask) -> Query:
        """Parse, render and hash a request. Whatever goes wrong is the query's `degraded`."""
        if ask.body is None:
            return Query(ask.turn or 0, degraded=ask.degraded, response=response_in(ask.path))
        query = read(pool, self._index.adapters(pool.name), ask.path, ask.body, ask.turn)
        if query.degraded is None and pool.disaggregated:
            return replace(query, divisible=disaggregation.divisible(ask.path, ask.body))
        return query

    async def remember(self, pool: Pool, response: str, instance: str) -> None:
        """An instance, by name, keeps this response."""
        with suppress(IndexUnavailable):  # then what refers to it goes by load
            await self._index.remember(pool.name, response, instance, RESPONSE_TTL_S)

    async def _recalled(self, pool: Pool, query: Query) -> Query:
        """The query with the keeper of the response that it refers to; without one, load alone decides."""
        try:
            keeper = await self._index.recall(pool.name, query.response or "")
        except IndexUnavailable:
            return replace(query, degraded=Reason.INDEX_UNAVAILABLE)
        return replace(query, keeper=keeper, degraded=Reason.UNKNOWN_RESPONSE)

    def decide(
        self,
        pool: Pool,
        route: RouteSettings,
        query: Query,
        held: Mapping[str, int],
        admitted: Admission = admission.ALL,
        *,
        now: float,
    ) -> Decision:
        """Apply the policy to what is known and count the request. `held` is in prompt blocks, by instance name.

        Raises NoInstance and Shed, as `pick`.
        """
        candidates = pool.candidates(now, admitted.subset)
        if not candidates:
            raise NoInstance(f"no instance of the model server is available in pool {pool.name!r}; try again later")
        halves = disaggregation.halves(candidates, query.failed)
        halved = query.divisible and bool(halves.prefill)
        decoder = self._decoder(pool, halves.decode, admitted) if halved else None
        candidates = halves.prefill if halved else halves.decode
        names = [instance.name for instance in candidates]
        requests, waiting = self._loads.view(pool.name, names)
        _shed(pool, requests, admitted)
        loads, unit = (waiting, query.prompt) if halved else (requests, 1)
        hits = pool.speculation.match(query.chain, held, now)
        cached = [hits.get(name, 0) * pool.block_bytes for name in names]
        view = View(query.turn, query.history, query.prompt, cached, loads, pool.cursor, waiting, self._seed(), unit)
        degraded = Reason.PREFILL_FAILED if query.failed and not halved else query.degraded
        pinned = names.index(query.keeper) if query.keeper in names else None
        chosen, reason = _pinned(pinned) if pinned is not None else _verdict(route, view, degraded)
        if _took_turns(reason, cached, chosen):
            pool.cursor = chosen + 1
        choice = Choice(
            instance=candidates[chosen],
            fallbacks=_fallbacks(candidates, loads, chosen),
            policy=route.policy,
            reason=reason,
            turn=query.turn,
            hit=cached[chosen],
            best_hit=max(cached),
            history=query.history,
            prompt=query.prompt,
            load=loads[chosen],
            mean_load=sum(loads) / len(loads),
        )
        shadows = opinions(route.shadows, view, chosen) if degraded is None else ()
        ticket = self._loads.start(pool.name, names[chosen], query.prompt - cached[chosen])
        pool.speculation.note(names[chosen], query.chain, held.get(names[chosen], 0), now)
        if decoder is None or decoder.instance is choice.instance:
            return Decision(choice, ticket, query, held, shadows)
        pair = PairTicket(ticket, self._loads.start(pool.name, decoder.instance.name, 0))
        halved_choice = replace(choice, prefill=choice.instance, instance=decoder.instance, fallbacks=decoder.fallbacks)
        return Decision(halved_choice, pair, query, held, shadows)

    def _decoder(self, pool: Pool, candidates: Sequence[Instance], admitted: Admission) -> _Decoder:
        """The instance that decodes: the one with the fewest requests in flight, ties round robin."""
        requests, _ = self._loads.view(pool.name, [instance.name for instance in candidates])
        _shed(pool, requests, admitted)
        chosen = lowest(requests, pool.decode_cursor)
        pool.decode_cursor = chosen + 1
        return _Decoder(candidates[chosen], _fallbacks(candidates, requests, chosen))


class _Decoder(NamedTuple):
    instance: Instance
    fallbacks: tuple[Instance, ...]


def _shed(pool: Pool, requests: Sequence[int], admitted: Admission) -> None:
    if min(requests) >= admitted.max_load:
        raise Shed(f"every instance of pool {pool.name!r} has {admitted.max_load:g} requests in flight; try again")


def _took_turns(reason: Reason, cached: Sequence[int], chosen: int) -> bool:
    """Whether another instance would have done as well: then the next such decision goes on to the next instance."""
    if reason is Reason.PREVIOUS_RESPONSE:
        return False
    return reason is not Reason.STICK or cached.count(cached[chosen]) > 1


def _pinned(candidate: int) -> Verdict:
    """What an engine keeps no other engine can continue, however loaded it is."""
    return Verdict(candidate, Reason.PREVIOUS_RESPONSE)


def _verdict(route: RouteSettings, view: View, degraded: Reason | None) -> Verdict:
    if degraded is None:
        try:
            return registry.get(route.policy)(view, **route.options)
        except Exception:
            _log.exception("a bug in policy %s; the request is routed by load alone", route.policy)
            degraded = Reason.INTERNAL_ERROR
    return Verdict(least_loaded.choose(view).candidate, degraded)


def _fallbacks(candidates: Sequence[Instance], loads: Sequence[float], chosen: int) -> tuple[Instance, ...]:
    """Other hosts by least load; ties go round from the chosen one, so that a dead host's requests do not pile up."""
    count = len(candidates)
    others = (i for i in range(count) if candidates[i].address != candidates[chosen].address)
    best = heapq.nsmallest(FALLBACKS, others, key=lambda i: (loads[i], (i - chosen) % count))
    return tuple(candidates[i] for i in best)
