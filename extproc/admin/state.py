"""What `/debug/state` shows: each pool and its instances, with what each has cached and in flight.

The gauges say the same as the page, because one reading feeds both. Refuses to know HTTP (`http.py`) and to decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from extproc.base import metrics
from extproc.base.errors import IndexUnavailable
from extproc.base.model import EventReport, Knowledge, Source
from extproc.index import Index
from extproc.routing.pace import Learner
from extproc.routing.pools.loads import Loads
from extproc.routing.pools.pool import Pool

UNHEARD: Final = EventReport(Knowledge.UNKNOWN, -1, 0.0)  # of an instance that no follower has reported yet

Reports = Callable[[str], Mapping[str, EventReport] | None]


class StatePage:
    """Reads the state of a router's pools. `following`: where the followers of this process stand in a pool; None where
    other processes follow it."""

    def __init__(self, pools: Mapping[str, Pool], index: Index, loads: Loads, following: Reports) -> None:
        self._pools = pools
        self._index = index
        self._loads = loads
        self._following = following
        self.streams: Callable[[], int] = lambda: 0  # open ones
        self.configuration: Callable[[], Mapping[str, Any]] | None = None  # how it was loaded
        self.redis: Callable[[float], Sequence[Mapping[str, Any]]] | None = None  # how this process stands with each

    async def read(self, *, now: float) -> Mapping[str, Any]:
        """The page; brings the gauges up to date with it."""
        pools = {name: await self._pool(pool, now) for name, pool in list(self._pools.items())}
        page = {"pools": pools, "streams": self.streams()}
        if self.configuration is not None:
            page["configuration"] = self.configuration()
        return page if self.redis is None else page | {"redis": self.redis(now)}

    async def _pool(self, pool: Pool, now: float) -> Mapping[str, Any]:
        sizes, reports = await self._indexed(pool.name)
        names = [instance.name for instance in pool.instances]
        ejected = pool.ejections.ejected(now)
        states: dict[str, Any] = {}
        for instance, load in zip(pool.instances, self._loads.totals(pool.name, names), strict=True):
            blocks = None if sizes is None else sizes.get(instance.name, 0)
            follows = pool.source is Source.EVENTS and instance.kv_events is not None
            report = reports.get(instance.name, UNHEARD) if follows else None
            usual = pool.prefills.usual_s(instance.name)
            unhealthy = pool.unhealthy is not None and instance.address in pool.unhealthy
            states[instance.name] = {
                "in_flight": load.requests,
                "unprefilled_bytes": load.unprefilled,
                "unprefilled_s": round(load.work_us / 1e6, 3),
                "usual_prompt_s": None if usual is None else round(usual, 3),
                "healthy": None if pool.unhealthy is None else not unhealthy,
                "ejected_s": round(ejected.get(instance.address, 0.0), 1),
                "index_blocks": blocks,
                "kv_events": instance.kv_events if follows else None,
                "events": report,
            } | ({"priority": instance.priority} if instance.priority else {})
            metrics.IN_FLIGHT.labels(pool.name, instance.name).set(load.requests)
            metrics.UNHEALTHY.labels(pool.name, instance.name).set(unhealthy)
            metrics.UNPREFILLED_BYTES.labels(pool.name, instance.name).set(load.unprefilled)
            metrics.UNPREFILLED_SECONDS.labels(pool.name, instance.name).set(load.work_us / 1e6)
            if usual is not None:
                metrics.USUAL_PROMPT_SECONDS.labels(pool.name, instance.name).set(usual)
            metrics.INDEX_BLOCKS.labels(pool.name, instance.name).set(blocks or 0)
        pool.speculation.expire(now)
        metrics.SPECULATIVE_BLOCKS.labels(pool.name).set(len(pool.speculation))
        return {
            "source": pool.source,
            "speculative_blocks": len(pool.speculation),
            "pace": _shown(pool.prefills.learner),
            "instances": states,
        }

    async def _indexed(self, pool: str) -> tuple[Mapping[str, int] | None, Mapping[str, EventReport]]:
        """Blocks held and the followers' reports, by instance; no sizes where the index does not answer."""
        following = self._following(pool)
        try:
            return await self._index.sizes(pool), await self._index.reports(pool) if following is None else following
        except IndexUnavailable:
            return None, {}


def _shown(learner: Learner) -> Mapping[str, Any]:
    """How fast a pool prefills, and from how many samples that is known."""
    pace = learner.pace
    return {
        "byte_us": round(1e6 * pace.byte_s, 3),
        "depth_bytes": round(pace.depth),
        "fetch_us": None if math.isinf(pace.fetch_s) else round(1e6 * pace.fetch_s, 3),
        "samples": learner.samples,
    }
