"""Dynamo: the prefill that waits on an instance, plus what this request would add.

    f = unprefilled + (prompt - hit)                                          the lowest wins, ties in turn

Source: NVIDIA Dynamo's KV router, reduced to its prefill terms. Loses on decode-heavy work: it does not see the
requests that only generate, and an instance full of them looks idle.
"""

from __future__ import annotations

from extproc.base.model import Reason
from extproc.routing.policies import Verdict, View, lowest


def choose(view: View) -> Verdict:
    """The least prefill in bytes, this request's included."""
    scores = [waiting + view.prompt - hit for hit, waiting in zip(view.hits, view.unprefilled, strict=True)]
    return Verdict(lowest(scores, view), Reason.SCORED)
