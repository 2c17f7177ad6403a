"""Bailian: a weighted sum of normalised load and missed cache.

    f = (1 - weight) * load / max(load) + weight * (1 - hit / prompt)         the lowest wins, ties in turn

Source: the production scheduler described in the SMetric paper (section 4), `weight` being its lambda. Loses when
sessions share a long prompt: the first instance that holds it attracts them all until its load term outweighs the hit.
"""

from __future__ import annotations

from extproc.base.model import Reason
from extproc.routing.policies import Verdict, View, lowest


def choose(view: View, *, weight: float = 0.7) -> Verdict:
    """`weight` (0 to 1) trades balance for reuse: 0 is least loaded, 1 looks at the cache alone."""
    busiest = max(view.loads) or 1
    prompt = view.prompt or 1
    scores = [
        (1 - weight) * load / busiest + weight * (1 - hit / prompt)
        for hit, load in zip(view.hits, view.loads, strict=True)
    ]
    return Verdict(lowest(scores, view), Reason.SCORED)
