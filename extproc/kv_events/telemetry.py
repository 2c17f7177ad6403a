"""What operators see of one instance's events: metrics, and a log line for each cause of trouble, once.

It takes what a feed has counted. It knows no socket and decides nothing.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from extproc.base import metrics
from extproc.base.model import EventReport, Knowledge
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

    def show(self, feed: Feed, report: EventReport, *, connected: bool) -> None:
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
        metrics.EVENTS_CONNECTED.labels(*self._labels).set(connected)
        self._show_times(report, connected=connected)
        state = report.state
        if state is not self._shown:
            self._say(state, lost=state is Knowledge.UNKNOWN and self._shown is not None and not connected)

    def _show_times(self, report: EventReport, *, connected: bool) -> None:
        if connected:
            metrics.EVENT_LAG_SECONDS.labels(*self._labels).set(report.lag_s)
        else:
            with suppress(KeyError):
                metrics.EVENT_LAG_SECONDS.remove(*self._labels)
        if report.silent_s is not None:
            metrics.EVENT_SILENCE_SECONDS.labels(*self._labels).set(report.silent_s)

    def complain(self, cause: str, detail: str, times: int = 1) -> None:
        """Something could not be used."""
        metrics.EVENT_ERRORS.labels(*self._labels, cause).inc(times)
        if cause not in self._logged:
            self._logged.add(cause)
            _log.warning("events of %s, pool %s: %s (said once)", self._instance, self._pool, detail)

    def unreached(self, cause: str, *, replay: bool) -> None:
        """The events, or their replay, have been out of reach for long enough to be a mistake."""
        what = (
            "their replay does not answer, so what was cached before is not known"
            if replay
            else "not reached, so nothing is known of its cache"
        )
        _log.warning("events of %s, pool %s: %s: %s", self._instance, self._pool, what, cause)

    def reached(self) -> None:
        """What was out of reach is not any more."""
        _log.info("events of %s, pool %s: reached", self._instance, self._pool)

    def bug(self) -> None:
        """An unexpected exception is being handled."""
        metrics.EXCEPTIONS.labels("events").inc()
        _log.exception("a bug in following %s of pool %s; it begins anew", self._instance, self._pool)

    def remove(self) -> None:
        """An instance that is followed elsewhere has its state and its times there."""
        for metric in (metrics.EVENT_LAG_SECONDS, metrics.EVENT_SILENCE_SECONDS, metrics.EVENTS_CONNECTED):
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
