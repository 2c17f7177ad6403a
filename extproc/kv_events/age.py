"""How long ago an engine said something, by the times that it writes on its batches, whatever its clock shows.

The clocks of two machines differ. The batch that came quickest of late is taken to have come at once; what came slower
than that one was said so much earlier. Pure: both clocks are arguments.
"""

from __future__ import annotations

import math

WINDOW_S = 60.0  # clocks are set now and then: a batch counts as the quickest for one to two such windows


class Age:
    """Of the batches of one engine. Times are in seconds of wall clocks: the engine's and ours."""

    def __init__(self) -> None:
        self._quickest = self._before = math.inf  # difference of the clocks, in this window and the one before
        self._since = -math.inf

    def heard(self, said: float, now: float) -> float:
        """The age of a batch that comes as it is published."""
        if not 0 <= now - self._since < WINDOW_S:
            self._before, self._quickest, self._since = self._quickest, math.inf, now
        self._quickest = min(self._quickest, now - said)
        return self.of(said, now)

    def of(self, said: float, now: float) -> float:
        """The age of a batch that comes late, as in a replay. Until one was heard, the clocks are taken to agree."""
        difference = min(self._quickest, self._before)
        return max(0.0, now - said - (difference if math.isfinite(difference) else 0.0))
