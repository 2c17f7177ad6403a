"""Least delay: what a request waits for, plus how long its own prefill holds up whoever is there, itself included.

    f = wait + W(hit, best, prompt) * (load + 1)                              the lowest wins, ties in turn

All in seconds. `wait` is what is left to prefill for the requests in flight there. W is the prefill of what is missing,
with attention: a byte deep in a prompt costs several times one at its beginning. What another instance holds (`best`,
the longest hit) costs what fetching it does, at most computing it; `routing/pace.py` learns these prices from the
engines' events. `load` is in requests like this one: an engine that prefills decodes late.

Source: ours (docs/policy-search.md). It is Dynamo's queue plus LMetric's product with an idle instance counted as one
request, in seconds instead of bytes. It has no notion of a session: follow-ups stay because elsewhere they miss more.

Loses where events are absent: a prefill then counts until its reply ends, and long replies look like work.
"""

from __future__ import annotations

from extproc.base.model import Reason
from extproc.routing.policies import Verdict, View, lowest


def choose(view: View) -> Verdict:
    """The least sum of delays."""
    best, pace = max(view.hits), view.pace
    rest = pace.compute(best, view.prompt)
    scores = [
        wait + (pace.held(hit, best) + rest) * (load / (view.unit or 1) + 1)
        for hit, load, wait in zip(view.hits, view.loads, view.waits, strict=True)
    ]
    return Verdict(lowest(scores, view), Reason.SCORED)
