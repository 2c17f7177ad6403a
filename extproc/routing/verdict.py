"""What follows from a view of the candidates: the verdict, where a retry goes, when to shed. Pure.

Owns how a policy's answer is overruled: by an engine that alone can continue a response, by a request that cannot be
read, by a bug. Refuses to know pools, loads and how a view came about.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Sequence

from extproc.base.errors import Shed
from extproc.base.model import Instance, Reason
from extproc.routing.policies import Verdict, View, least_loaded, registry
from extproc.routing.route_settings import RouteSettings

_log = logging.getLogger(__name__)

FALLBACKS = 2  # with one destination alone, Envoy's retry may hit the dead host again


def verdict(route: RouteSettings, view: View, degraded: Reason | None, pinned: int | None) -> Verdict:
    """The candidate to take, and why. `pinned` keeps what the request refers to; `degraded` says that load decides."""
    if pinned is not None:
        # What an engine keeps no other engine can continue, however loaded it is.
        return Verdict(pinned, Reason.PREVIOUS_RESPONSE)
    if degraded is None:
        try:
            return registry.get(route.policy)(view, **route.options)
        except Exception:
            _log.exception("a bug in policy %s; the request is routed by load alone", route.policy)
            degraded = Reason.INTERNAL_ERROR
    return Verdict(least_loaded.choose(view).candidate, degraded)


def fallbacks(
    candidates: Sequence[Instance], loads: Sequence[float], chosen: int, standby: Sequence[Instance] = ()
) -> tuple[Instance, ...]:
    """Other hosts by least load; ties go round from the chosen one, so that a dead host's requests do not pile up.

    Where there are too few, those on standby are next.
    """
    count = len(candidates)
    others = (i for i in range(count) if candidates[i].address != candidates[chosen].address)
    best = heapq.nsmallest(FALLBACKS, others, key=lambda i: (loads[i], (i - chosen) % count))
    return (*(candidates[i] for i in best), *standby)[:FALLBACKS]


def shed(pool: str, requests: Sequence[int], max_load: float) -> None:
    """Raises Shed where every candidate has `max_load` requests in flight."""
    if min(requests) >= max_load:
        raise Shed(f"every instance of pool {pool!r} has {max_load:g} requests in flight; try again")
