"""From a request to an instance. `Router.pick` reads top to bottom; it awaits the reader of bodies and the index.

Everything between reading the loads and counting the request is synchronous, so no two decisions of one process can
see the same idle instance. What cannot be read is routed by load alone, with the reason; only a request that no
instance may take, or that the route sheds, is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from extproc.base.errors import IndexUnavailable, NoInstance
from extproc.base.load import Load
from extproc.base.model import Choice, Instance, Reason
from extproc.index import Index
from extproc.routing import media
from extproc.routing.disaggregation.halves import ATTEMPTS, Halves, halves
from extproc.routing.policies import Verdict, View, lowest
from extproc.routing.pools import admission
from extproc.routing.pools.admission import Admission
from extproc.routing.pools.loads import Loads, PairTicket, Ticket
from extproc.routing.pools.pool import Pool
from extproc.routing.pools.prefills import Prompt
from extproc.routing.pools.ties import Kind
from extproc.routing.query import Ask, Query
from extproc.routing.reading import AtOnce, Reader, Reading
from extproc.routing.route_settings import RouteSettings
from extproc.routing.shadow import Opinion, opinions
from extproc.routing.verdict import fallbacks, shed, verdict

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

    def __init__(
        self, index: Index, loads: Loads, seed: Callable[[], int] = lambda: 0, reader: Reader | None = None
    ) -> None:
        """`seed` draws 64 random bits for policies that want them."""
        self._reader = reader or AtOnce()
        self.adapters = index.adapters  # by a pool's name: the LoRA adapters that its engines announced
        self._index = index
        self._loads = loads
        self._seed = seed

    async def read(self, pools: Sequence[Pool], ask: Ask) -> Reading:
        """Which of the pools serves the request's model, and what it asks of the caches there. Raises nothing."""
        return await self._reader.read(pools, self.adapters, ask)

    async def pick(
        self, pool: Pool, route: RouteSettings, ask: Ask, query: Query | None = None, *, now: float
    ) -> Decision:
        """Choose an instance and count the request there. `now` is in seconds, of any monotonic clock.

        `query` is what `read` made of the request, where that was done. Raises NoInstance where no instance is
        admitted, Shed where all are at their limit, and nothing else.
        """
        if query is None:
            query = (await self.read([pool], ask)).query
        if query.spoken is not None and pool.few_shot.begins(query.spoken):
            query = replace(query, turn=0, history=0)
        if query.response is not None:
            query = await self._recalled(pool, query)
        held: Mapping[str, int] = {}
        mark = pool.speculation.mark
        if query.chain:
            try:
                held = await self._held(pool, query)
                pool.agreement.note(query.turn, len(query.chain), matched=bool(held))
                media.learn(pool, query, held)
                query = await self._with_sent(pool, query)
            except IndexUnavailable:
                query = replace(query, degraded=Reason.INDEX_UNAVAILABLE)
        return self.decide(pool, route, query, held, Admission(ask.subset, route.max_load), now=now, mark=mark)

    def again(
        self, pool: Pool, route: RouteSettings, ask: Ask, routed: Decision, *, hopeless: bool = False, now: float
    ) -> Decision:
        """Choose anew where `routed.choice.prefill` could not prefill; gives the load of that choice back.

        After `ATTEMPTS` failures, or where more are `hopeless`, the one that decodes computes the prompt
        itself. Raises NoInstance.
        """
        routed.ticket.release()
        failed = routed.query.failed | {routed.choice.computes.name}
        divisible = not hopeless and len(failed) < ATTEMPTS
        query = replace(routed.query, failed=failed, divisible=divisible)
        return self.decide(pool, route, query, routed.held, Admission(ask.subset), now=now)

    async def _held(self, pool: Pool, query: Query) -> Mapping[str, int]:
        """Who holds how much of the prompt, by instance name."""
        held = await self._index.match(pool.name, query.chain)
        if not query.base_chain:
            return held
        base = await self._index.match(pool.name, query.base_chain)
        return {name: blocks for name, blocks in base.items() if name not in query.loaded} | {
            name: blocks for name, blocks in held.items() if name in query.loaded
        }

    async def _with_sent(self, pool: Pool, query: Query) -> Query:
        """The query with who was asked for the replies that follow its first medium."""
        if query.media is None or not query.media.replies:
            return query
        return replace(query, media=replace(query.media, sent=await self._index.match(pool.name, query.media.replies)))

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
        mark: int | None = None,
    ) -> Decision:
        """Apply the policy to what is known and count the request. `held` is in prompt blocks, by instance name.

        `mark` is the pool's mark of hints from before the index was asked. Raises NoInstance and Shed, as `pick`.
        """
        sides = _sides(pool, query, admitted, now)
        decoder = self._decoder(pool, sides.decode, admitted) if sides.prefill else None
        candidates = sides.prefill or sides.decode
        counted = self._loads_of(pool, candidates, admitted)
        waiting = [load.unprefilled for load in counted]
        loads, unit = (waiting, query.prompt) if decoder else ([load.requests for load in counted], 1)
        names = [instance.name for instance in candidates]
        hits = _hits(pool, query, names, held, now, mark)
        kind = Kind.FIRST if query.turn == 0 and query.prompt else Kind.OTHER
        asked = (query.turn, query.history, query.prompt)
        view = View(
            *asked,
            hits,
            loads,
            pool.cursor,
            waiting,
            self._seed(),
            pool.ties.shares(kind, names),
            unit,
            waits=[load.work_us / 1e6 for load in counted],
            pace=pool.prefills.pace,
        )
        degraded = Reason.PREFILL_FAILED if query.failed and not decoder else query.degraded
        best = verdict(route, view, degraded, _place_of(query.keeper, candidates))
        pool.cursor = best.candidate + 1
        pool.ties.note(kind, names[best.candidate], query.prompt)
        standby = pool.standby(candidates, now, admitted.subset)
        choice = _choice(route, view, best, candidates, standby)
        shadows = opinions(route.shadows, view, best.candidate) if degraded is None else ()
        name = choice.instance.name
        ticket = self._count(pool, query, choice, now)
        if query.degraded is not Reason.INDEX_UNAVAILABLE:  # else it may hold the prompt, and lose it without a word
            pool.speculation.note(name, query.chain_on(name), held.get(name, 0), now)
        if decoder is None or decoder.instance is choice.instance:
            return Decision(choice, ticket, query, held, shadows)
        pair = PairTicket(ticket, self._loads.start(pool.name, decoder.instance.name, 0))
        return Decision(decoder.with_prefill(choice), pair, query, held, shadows)

    def _decoder(self, pool: Pool, candidates: Sequence[Instance], admitted: Admission) -> _Decoder:
        """The instance that decodes: the one with the fewest requests in flight, ties in turn."""
        requests = [load.requests for load in self._loads_of(pool, candidates, admitted)]
        names = [instance.name for instance in candidates]
        nothing = [0] * len(names)
        shares = pool.ties.shares(Kind.DECODE, names)
        chosen = lowest(requests, View(0, 0, 0, nothing, requests, 0, nothing, self._seed(), shares))
        pool.ties.note(Kind.DECODE, names[chosen], 0)
        return _Decoder(candidates[chosen], fallbacks(candidates, requests, chosen))

    def _count(self, pool: Pool, query: Query, choice: Choice, now: float) -> Ticket:
        """Count the request where its prompt is computed, until the engine says that it is, or the request is over."""
        instance, hit, best, length = choice.instance, choice.hit, choice.best_hit, query.prompt
        work_s = pool.prefills.pace.prefill(hit, best, length)
        ticket = self._loads.start(pool.name, instance.name, length - hit, work_s)
        if query.chain and pool.tells(instance):
            prompt = Prompt(query.chain_on(instance.name), pool.block_bytes, length, hit, best)
            pool.prefills.begin(instance.name, prompt, ticket, now)
        return ticket

    def _loads_of(self, pool: Pool, candidates: Sequence[Instance], admitted: Admission) -> Sequence[Load]:
        """What each candidate has in flight. Raises Shed where all are at their limit."""
        loads = self._loads.totals(pool.name, [instance.name for instance in candidates])
        shed(pool.name, [load.requests for load in loads], admitted.max_load)
        return loads


class _Decoder(NamedTuple):
    instance: Instance
    fallbacks: tuple[Instance, ...]

    def with_prefill(self, choice: Choice) -> Choice:
        """The choice of who prefills for this instance."""
        return replace(choice, prefill=choice.instance, instance=self.instance, fallbacks=self.fallbacks)


def _sides(pool: Pool, query: Query, admitted: Admission, now: float) -> Halves:
    """Who may serve a request; `prefill` is empty where one instance does everything. Raises NoInstance."""
    candidates = pool.candidates(now, admitted.subset)
    if not candidates:
        raise NoInstance(f"no instance of the model server is available in pool {pool.name!r}; try again later")
    sides = halves(candidates, query.failed)
    return sides if query.divisible else Halves((), sides.decode)


def _hits(
    pool: Pool, query: Query, names: Sequence[str], held: Mapping[str, int], now: float, mark: int | None
) -> Sequence[int]:
    """Bytes of the prompt that each candidate has cached, or was just sent."""
    found = pool.speculation.match(query.chain, held, now, mark)
    if query.base_chain:
        found = pool.speculation.match(query.base_chain, found, now, mark)
    return [media.hit(pool, query, name, found.get(name, 0)) for name in names]


def _place_of(name: str | None, candidates: Sequence[Instance]) -> int | None:
    return next((i for i, instance in enumerate(candidates) if instance.name == name), None)


def _choice(
    route: RouteSettings, view: View, best: Verdict, candidates: Sequence[Instance], standby: Sequence[Instance]
) -> Choice:
    return Choice(
        instance=candidates[best.candidate],
        fallbacks=fallbacks(candidates, view.loads, best.candidate, standby),
        policy=route.policy,
        reason=best.reason,
        turn=view.turn,
        hit=view.hits[best.candidate],
        best_hit=max(view.hits),
        history=view.history,
        prompt=view.prompt,
        load=view.loads[best.candidate],
        mean_load=sum(view.loads) / len(view.loads),
    )
