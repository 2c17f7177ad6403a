"""Least loaded: f = load, the lowest wins, ties in turn. Join the shortest queue, vLLM's own default.

Loses whenever prompts repeat: a session's follow-ups scatter, and each instance prefills the same history again
(the paper: 4 % of follow-ups return to their first instance, 6 % local hits with a small global tier).
"""

from __future__ import annotations

from extproc.base.model import Reason
from extproc.routing.policies import Verdict, View, lowest


def choose(view: View) -> Verdict:
    """The candidate with the lowest load."""
    return Verdict(lowest(view.loads, view), Reason.SCORED)
