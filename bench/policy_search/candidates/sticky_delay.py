"""SMetric with an overload test on expected delay: a session stays while the prefill that waits for it there is less
than what the least loaded instance would have to compute anew. A candidate that lost.

    s = argmax hit, b = argmin load
    turn > 0 and unprefilled[s] <= unprefilled[b] + patience * (hit[s] - hit[b]) and hit[s] > hit_ratio * history:  s
    else:                                                                                                          b
"""

from __future__ import annotations

from extproc.base.model import Reason
from extproc.routing.policies import Verdict, View, lowest


def choose(view: View, *, patience: float = 1.0, hit_ratio: float = 0.5) -> Verdict:
    """`patience`: bytes of prefill that a byte of hit is worth waiting for."""
    freest = lowest(view.loads, view)
    if view.turn <= 0:
        return Verdict(freest, Reason.FIRST_TURN)
    longest = max(view.hits)
    sticky = min((i for i, hit in enumerate(view.hits) if hit == longest), key=lambda i: view.loads[i])
    if longest <= hit_ratio * view.history:
        return Verdict(freest, Reason.EVICTED)
    gain = patience * (longest - view.hits[freest])
    if view.unprefilled[sticky] > view.unprefilled[freest] + gain:
        return Verdict(freest, Reason.OVERLOADED)
    return Verdict(sticky, Reason.STICK)
