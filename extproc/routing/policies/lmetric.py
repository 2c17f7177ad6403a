"""LMetric: the prefill that is left, times the load.

    f = (prompt - hit) * (load + idle)                                        the lowest wins, ties in turn

Source: LMetric, as the SMetric paper cites it (section 4). An instance counts as `idle` requests more than it has:
with 0, the formula as printed, an idle instance scores 0 whatever it lacks, so follow-ups leave their cache for it;
with 1 the prefill that is left decides among idle instances.

Loses where loads are small with `idle` 0, and piles up sessions that share a prompt with 1.
"""

from __future__ import annotations

from extproc.base.model import Reason
from extproc.routing.policies import Verdict, View, lowest


def choose(view: View, *, idle: float = 0.0) -> Verdict:
    """The least product of new bytes and load."""
    extra = idle * view.unit
    scores = [(view.prompt - hit) * (load + extra) for hit, load in zip(view.hits, view.loads, strict=True)]
    return Verdict(lowest(scores, view), Reason.SCORED)
