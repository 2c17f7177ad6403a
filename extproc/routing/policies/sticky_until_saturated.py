"""Sticky until saturated: the least loaded of the instances that hold most of the prompt, unless all are saturated.

    sticky = {i : hit[i] >= match * prompt and load[i] < saturation}
    argmin load over sticky, or over all instances where sticky is empty;     ties in turn

Source: llm-d's default profile (prefix affinity 0.8 until saturation). Loses when sessions share a long prompt: their
first requests match 0.8 of it on the one instance that served it first, and pile up there until it saturates.
"""

from __future__ import annotations

from extproc.base.model import Reason
from extproc.routing.policies import Verdict, View, in_turn, lowest


def choose(view: View, *, match: float = 0.8, saturation: float = 64.0) -> Verdict:
    """`match` is the share of the prompt that must be held; `saturation` is in requests in flight."""
    needed = max(match * view.prompt, 1)
    sticky = [i for i, hit in enumerate(view.hits) if hit >= needed and view.loads[i] < saturation]
    if not sticky:
        return Verdict(lowest(view.loads, view), Reason.SCORED)
    least = min(view.loads[i] for i in sticky)
    tied = (i for i in sticky if view.loads[i] == least)
    return Verdict(in_turn(tied, view), Reason.SCORED)
