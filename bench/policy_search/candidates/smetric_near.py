"""SMetric, with near-ties of load broken by the longest hit, or with another test for overload. A candidate that lost.

`first` and `near`: how many requests above the least load still count as a tie, for first turns, and where a follow-up
may not stay. `slack`: stay while the load is at most so many requests above the least, instead of a ratio to the mean;
below 0 the ratio holds.
"""

from __future__ import annotations

from extproc.base.model import Reason
from extproc.routing.policies import Verdict, View, in_turn


def choose(
    view: View,
    *,
    first: float = 0.0,
    near: float = 0.0,
    slack: float = -1.0,
    overload: float = 2.0,
    hit_ratio: float = 0.5,
) -> Verdict:
    """SMetric's rules; ties within a tolerance go to the longest hit, then to the least load."""
    if view.turn <= 0:
        return _freest(view, first, Reason.FIRST_TURN)
    longest = max(view.hits)
    sticky = min((i for i, hit in enumerate(view.hits) if hit == longest), key=lambda i: view.loads[i])
    limit = max(overload * sum(view.loads) / len(view.loads), view.unit)
    if slack >= 0:
        limit = min(view.loads) + slack * view.unit
    if longest > 0 and view.loads[sticky] > limit:
        return _freest(view, near, Reason.OVERLOADED)
    if longest <= hit_ratio * view.history:
        return _freest(view, near, Reason.EVICTED)
    return Verdict(sticky, Reason.STICK)


def _freest(view: View, tolerance: float, reason: Reason) -> Verdict:
    least = min(view.loads)
    near = [i for i, load in enumerate(view.loads) if load <= least + tolerance * view.unit]
    best = min((-view.hits[i], view.loads[i]) for i in near)
    tied = (i for i in near if (-view.hits[i], view.loads[i]) == best)
    return Verdict(in_turn(tied, view), reason)
