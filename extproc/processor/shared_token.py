"""Who may open a stream: whoever knows a shared token, where one is configured.

Owns the comparison and what is said of those who do not. Refuses to know where tokens come from, and TLS, which may ask
for a certificate before (`tls.py`). Without a token everybody who reaches the port may.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Iterable, Sequence

from extproc.base import metrics
from extproc.base.headers import TOKEN

_log = logging.getLogger(__name__)

AGAIN_S = 60.0  # until the log repeats it: refused streams may come by the thousand


class Access:
    """Judges the metadata of streams. Several tokens are all good, so that one can replace another without a gap."""

    def __init__(self, tokens: Sequence[str] = ()) -> None:
        self._tokens = tuple(token.encode() for token in tokens)
        self._said: float | None = None

    def admits(self, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
        """Whether a stream with this metadata may go on; in a time that tells nothing of the tokens."""
        if not self._tokens:
            return True
        shown = [value if isinstance(value, bytes) else value.encode() for key, value in metadata if key == TOKEN]
        good = [hmac.compare_digest(token, value) for value in shown for token in self._tokens]
        return any(good)

    def refused(self, peer: str, now: float) -> None:
        """Count a stream that was refused, and say so now and then."""
        metrics.REFUSED_STREAMS.inc()
        if self._said is None or now - self._said >= AGAIN_S:
            self._said = now
            _log.warning(
                "a stream from %s without the right %s was refused; its request goes on without us", peer, TOKEN
            )
