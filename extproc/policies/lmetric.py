"""LMetric: the prefill that is left, times the load.

    f = (prompt - hit) * load                                                 the lowest wins, ties round robin

Source: LMetric, as the SMetric paper cites it (section 4). There is no weight to tune. Loses where loads are small: an
idle instance scores 0 whatever it lacks, so follow-ups leave their cache for it (33 % local hits in that paper).
"""

from __future__ import annotations

from extproc.model import Reason
from extproc.policies import Verdict, View, lowest


def choose(view: View) -> Verdict:
    """The least product of new bytes and load."""
    scores = [(view.prompt - hit) * load for hit, load in zip(view.hits, view.loads, strict=True)]
    return Verdict(lowest(scores, view.cursor), Reason.SCORED)
