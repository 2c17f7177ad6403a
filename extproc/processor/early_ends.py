"""Loads that were given back before their requests ended, because Envoy let go of the stream: counted, and told.

Owns how such a stream is told from one that ended with its request, and how often the log says so. Refuses to know the
YAML: `check` judges that, where we read it; this is for gateways that write Envoy's configuration themselves.
"""

from __future__ import annotations

import logging

from extproc.base import metrics

_log = logging.getLogger(__name__)

# A stream that Envoy closes early ends within a moment after the response's headers were answered; a streamed reply
# takes longer, nearly always. One that does takes back several that do not; so many are then no accident.
MOMENT_S = 0.01
TAKES_BACK = 3
TOO_MANY = 32
AGAIN_S = 3600.0  # until the log repeats it

_EARLY = "pool %s: Envoy closes ext_proc streams at the response's headers: instances are chosen by loads that are too "
_EARLY += "low, and x-smetric-max-load does not shed; write response_trailer_mode: SEND"
_TUNNEL = (
    "pool %s: Envoy held a WebSocket, CONNECT or gRPC request back until we left it, so that its load is not counted; "
)
_TUNNEL += "write allow_mode_override: true"


class EarlyEnds:
    """Of all streams of one process."""

    def __init__(self) -> None:
        self._early = 0
        self._said: dict[str, float] = {}

    def streamed(self, pool: str, lived_s: float, now: float) -> None:
        """A streamed reply's stream ended, so many seconds after the reply's headers were answered."""
        if lived_s >= MOMENT_S:
            self._early = max(0, self._early - TAKES_BACK)
            return
        metrics.UNCOUNTED.labels(pool, "closed_early").inc()
        self._early += 1
        if self._early >= TOO_MANY:
            self._say(_EARLY, pool, now)

    def left(self, pool: str, now: float) -> None:
        """We ended the stream of a request whose body Envoy would have waited for in vain."""
        metrics.UNCOUNTED.labels(pool, "tunnel").inc()
        self._say(_TUNNEL, pool, now)

    def _say(self, text: str, pool: str, now: float) -> None:
        if now - self._said.get(text, -AGAIN_S) >= AGAIN_S:
            self._said[text] = now
            _log.warning(text, pool)
