"""Random: every instance with equal chance, from the view's seed. For comparison: the floor to beat."""

from __future__ import annotations

from extproc.base.model import Reason
from extproc.routing.policies import Verdict, View


def choose(view: View) -> Verdict:
    """A candidate by the seed, which the router draws anew for each request."""
    return Verdict(view.seed % len(view.loads), Reason.SCORED)
