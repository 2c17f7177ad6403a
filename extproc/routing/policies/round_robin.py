"""Round robin: each decision goes to the next instance. For comparison: it knows neither cache nor load.

Loses whenever requests differ in size or share a prefix, which agents' requests always do.
"""

from __future__ import annotations

from extproc.base.model import Reason
from extproc.routing.policies import Verdict, View


def choose(view: View) -> Verdict:
    """Candidate `cursor` modulo their number."""
    return Verdict(view.cursor % len(view.loads), Reason.SCORED)
