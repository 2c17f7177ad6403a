"""From a request to an instance. `Router.pick` reads top to bottom; its only await is the index.

Everything between reading the loads and counting the request is synchronous, so no two decisions of one process can
see the same idle instance. What cannot be read is routed by load alone, with the reason; only a pool without any
instance is an error.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from extproc import admission, blocks, openai
from extproc.admission import Admission
from extproc.errors import IndexUnavailable, NoInstance, RenderError, Shed, UnreadableBody, UnsupportedApi
from extproc.index import Index
from extproc.loads import Loads, Ticket
from extproc.model import Choice, Instance, Reason
from extproc.policies import Verdict, View, least_loaded, registry
from extproc.pools import Pool

_log = logging.getLogger(__name__)

FALLBACKS = 2  # with one destination alone, Envoy's retry may hit the dead host again


@dataclass(frozen=True, slots=True)
class Query:
    """What a request asks of the caches: its turn, its lengths in bytes, and the keys of its prompt blocks."""

    turn: int = 0
    history: int = 0
    prompt: int = 0
    chain: Sequence[int] = ()
    degraded: Reason | None = None  # why this is all that is known: decide by load alone


@dataclass(frozen=True, slots=True)
class Routed:
    """A choice, the load that it holds until `ticket.release()`, and the chain that its instance is about to cache."""

    choice: Choice
    ticket: Ticket
    chain: Sequence[int]


class Router:
    """Routes the requests of all pools. It remembers no session: the turn comes from the request itself."""

    def __init__(self, index: Index, loads: Loads, seed: Callable[[], int] = lambda: 0) -> None:
        """`seed` draws 64 random bits for policies that want them."""
        self._index = index
        self._loads = loads
        self._seed = seed

    async def pick(
        self,
        pool: Pool,
        policy: str,
        options: Mapping[str, float],
        path: str,
        body: bytes | None,
        degraded: Reason | None = None,
        admitted: Admission = admission.ALL,
        *,
        now: float,
    ) -> Routed:
        """Choose an instance and count the request there. `now` is in seconds, of any monotonic clock.

        Raises NoInstance where nobody is admitted, Shed where all are at their limit, nothing else whatever the body.
        """
        query = self.query(pool, path, body) if body is not None else Query(degraded=degraded)
        held: Mapping[str, int] = {}
        if query.chain:
            try:
                held = await self._index.match(pool.name, query.chain)
            except IndexUnavailable:
                query = replace(query, degraded=Reason.INDEX_UNAVAILABLE)
        return self.decide(pool, policy, options, query, held, admitted, now=now)

    def query(self, pool: Pool, path: str, body: bytes) -> Query:
        """Parse, render and hash a body. Whatever goes wrong is the query's `degraded`."""
        turn = 0
        try:
            request = openai.parse(path, body)
            turn = request.turn
            prompt = pool.renderer.render(request)
            adapter = request.model if request.model not in pool.models else None
            adapter = adapter if adapter in self._index.adapters(pool.name) else None
            root = blocks.root(pool.name, adapter, request.cache_salt)
            chain = blocks.extend(prompt.data[: prompt.matchable], root, pool.block_bytes)
        except UnreadableBody:
            return Query(degraded=Reason.UNREADABLE_BODY)
        except UnsupportedApi:
            return Query(degraded=Reason.UNSUPPORTED_API)
        except RenderError:
            return Query(turn, degraded=Reason.RENDER_FAILED)
        except Exception:
            _log.exception("a bug in reading a request of pool %s; it is routed by load alone", pool.name)
            return Query(turn, degraded=Reason.INTERNAL_ERROR)
        # Past an image nothing can be matched, so nothing there can have been evicted either.
        return Query(turn, min(prompt.history, prompt.matchable), len(prompt.data), chain)

    def decide(
        self,
        pool: Pool,
        policy: str,
        options: Mapping[str, float],
        query: Query,
        held: Mapping[str, int],
        admitted: Admission = admission.ALL,
        *,
        now: float,
    ) -> Routed:
        """Apply the policy to what is known and count the request. `held` is in prompt blocks, by instance name.

        Raises NoInstance and Shed, as `pick`.
        """
        candidates = pool.candidates(now, admitted.subset)
        if not candidates:
            raise NoInstance(f"no instance of the model server is available in pool {pool.name!r}; try again later")
        names = [instance.name for instance in candidates]
        loads, waiting = self._loads.view(pool.name, names)
        if min(loads) >= admitted.max_load:
            raise Shed(f"every instance of pool {pool.name!r} has {admitted.max_load:g} requests in flight; try again")
        hits = pool.speculation.match(query.chain, held, now)
        cached = [hits.get(name, 0) * pool.block_bytes for name in names]
        view = View(query.turn, query.history, query.prompt, cached, loads, pool.cursor, waiting, self._seed())
        chosen, reason = _verdict(policy, options, view, query.degraded)
        if reason is not Reason.STICK:
            pool.cursor = chosen + 1
        choice = Choice(
            instance=candidates[chosen],
            fallbacks=_fallbacks(candidates, loads, chosen),
            policy=policy,
            reason=reason,
            turn=query.turn,
            hit=cached[chosen],
            best_hit=max(cached),
            history=query.history,
            prompt=query.prompt,
            load=loads[chosen],
            mean_load=sum(loads) / len(loads),
        )
        ticket = self._loads.start(pool.name, names[chosen], query.prompt - cached[chosen])
        pool.speculation.note(names[chosen], query.chain, held.get(names[chosen], 0), now)
        return Routed(choice, ticket, query.chain)


def _verdict(policy: str, options: Mapping[str, float], view: View, degraded: Reason | None) -> Verdict:
    if degraded is None:
        try:
            return registry.get(policy)(view, **options)
        except Exception:
            _log.exception("a bug in policy %s; the request is routed by load alone", policy)
            degraded = Reason.INTERNAL_ERROR
    return Verdict(least_loaded.choose(view).candidate, degraded)


def _fallbacks(candidates: Sequence[Instance], loads: Sequence[float], chosen: int) -> tuple[Instance, ...]:
    """Other hosts by least load; ties go round from the chosen one, so that a dead host's requests do not pile up."""
    count = len(candidates)
    others = (i for i in range(count) if candidates[i].address != candidates[chosen].address)
    best = heapq.nsmallest(FALLBACKS, others, key=lambda i: (loads[i], (i - chosen) % count))
    return tuple(candidates[i] for i in best)
