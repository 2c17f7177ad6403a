"""What operators see of one instance's events: metrics, and a log line for each cause of trouble, once.

It takes what a feed has counted. It knows no socket and decides nothing.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from extproc.base import metrics
from extproc.base.model import Knowledge
from extproc.kv_events.feed import Feed

_log = logging.getLogger(__name__)


class Telemetry:
    """Of one instance, by the names of its pool and itself."""

    def __init__(self, pool: str, instance: str) -> None:
        self._pool = pool
        self._instance = instance
        self._labels = (pool, instance)
        self._logged: set[str] = set()  # causes
        self._shown: Knowledge | None = None
        self._unreached = False  # whether that was said

    def show(self, feed: Feed, state: Knowledge, *, connected: bool) -> None:
        """Bring metrics and log up to date."""
        for kind, events in feed.events.items():
            metrics.EVENTS.labels(*self._labels, kind).inc(events)
        for (kind, tier), blocks in feed.blocks.items():
            metrics.EVENT_BLOCKS.labels(*self._labels, kind, tier).inc(blocks)
        for outcome, gaps in feed.gaps.items():
            metrics.EVENT_GAPS.labels(*self._labels, outcome).inc(gaps)
        for trouble in feed.troubles:
            self.complain(*trouble)
        for counted in (feed.events, feed.blocks, feed.gaps, feed.troubles):
            counted.clear()
        metrics.EVENT_LAG_SECONDS.labels(*self._labels).set(feed.lag)
        metrics.EVENTS_CONNECTED.labels(*self._labels).set(connected)
        if connected and self._unreached:
            self._unreached = False
            _log.info("events of %s, pool %s: reached", self._instance, self._pool)
        if state is not self._shown:
            self._say(state, lost=state is Knowledge.UNKNOWN and self._shown is not None and not connected)

    def complain(self, cause: str, detail: str, times: int = 1) -> None:
        """Something could not be used."""
        metrics.EVENT_ERRORS.labels(*self._labels, cause).inc(times)
        if cause not in self._logged:
            self._logged.add(cause)
            _log.warning("events of %s, pool %s: %s (said once)", self._instance, self._pool, detail)

    def unreached(self, cause: str) -> None:
        """The events have been out of reach for long enough to be a mistake."""
        self._unreached = True
        _log.warning(
            "events of %s, pool %s: not reached, so nothing is known of its cache: %s",
            self._instance,
            self._pool,
            cause,
        )

    def bug(self) -> None:
        """An unexpected exception is being handled."""
        metrics.EXCEPTIONS.labels("events").inc()
        _log.exception("a bug in following %s of pool %s; it begins anew", self._instance, self._pool)

    def remove(self) -> None:
        """An instance that is gone has no state and no lag."""
        for metric in (metrics.EVENT_LAG_SECONDS, metrics.EVENTS_CONNECTED):
            with suppress(KeyError):
                metric.remove(*self._labels)
        for each in Knowledge:
            with suppress(KeyError):
                metrics.EVENT_STATE.remove(*self._labels, each)

    def _say(self, state: Knowledge, *, lost: bool) -> None:
        self._shown = state
        for each in Knowledge:
            metrics.EVENT_STATE.labels(*self._labels, each).set(each is state)
        if lost:
            _log.warning(
                "instance %s, pool %s: the connection to its events is lost; "
                "its cache counts as empty until it is back",
                self._instance,
                self._pool,
            )
        else:
            _log.info("events of %s, pool %s: %s", self._instance, self._pool, state)
