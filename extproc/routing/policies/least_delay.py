"""Least delay: what a request waits for, plus how long its own prefill holds up whoever is there, itself included.

    missing = prompt - best + refetch * (best - hit)                          best = the longest hit of all instances
    f = unprefilled + missing * (load + 1)                                    the lowest wins, ties in turn

All in bytes to prefill. A request begins when the prefill before it is done (`unprefilled`), and its own (`missing`)
stops it and the `load` requests in flight: an engine that prefills decodes late. `load` is in requests like this one.

Source: ours (docs/policy-search.md). It is Dynamo's queue plus LMetric's product with an idle instance counted as one
request; neither does as well alone. It has no notion of a session: follow-ups stay because elsewhere they miss more.

`refetch` is what a byte costs that another instance holds, against one that has to be computed: 1 where there is no
global tier, about 0.5 with one that is fast and large, 0 where leaving a cache costs nothing, so that caches count for
nothing. Above 1 leaving costs more than computing anew: sessions stay longer than their own delay justifies.

Loses where `refetch` promises a tier that is not there, or that is too small: sessions then wander, and are recomputed.
"""

from __future__ import annotations

from extproc.base.model import Reason
from extproc.routing.policies import Verdict, View, lowest


def choose(view: View, *, refetch: float = 1.0) -> Verdict:
    """The least sum of delays; `refetch` (0 or more, usually up to 1) is the price of leaving a cache."""
    best = max(view.hits)
    scores = [
        waiting + (view.prompt - best + refetch * (best - hit)) * (load / (view.unit or 1) + 1)
        for hit, load, waiting in zip(view.hits, view.loads, view.unprefilled, strict=True)
    ]
    return Verdict(lowest(scores, view), Reason.SCORED)
