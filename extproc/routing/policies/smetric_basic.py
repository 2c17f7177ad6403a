"""SMetric without its guards: balance the first turn, then follow the longest hit whatever its load.

    turn == 0: argmin load        else: argmax hit, ties by least load

Source: the SMetric paper's ablation (the "basic" policy): the guards cut TTFT P90 from 16.1 to 12.1 s there. Loses when
long sessions gather on one instance, and when the cache evicts: an evicted session stays with any stray block of it.
"""

from __future__ import annotations

from extproc.base.model import Reason
from extproc.routing.policies import Verdict, View, lowest


def choose(view: View) -> Verdict:
    """The longest hit after the first turn; with no hit anywhere, the least loaded."""
    if view.turn <= 0:
        return Verdict(lowest(view.loads, view), Reason.SCORED)
    longest = max(view.hits)
    penalty = sum(view.loads) + 1  # more than any load: only the holders of the longest hit compete
    scores = [load + penalty * (hit < longest) for hit, load in zip(view.hits, view.loads, strict=True)]
    return Verdict(lowest(scores, view), Reason.SCORED)
