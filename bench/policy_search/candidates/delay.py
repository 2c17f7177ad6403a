"""The family that least delay is of, with a weight on each of its terms.

    missing = prompt - best + refetch * (best - hit),    each byte weighted by the attention of its position
    f = queue * unprefilled + missing * (1 + held_up * load) + decode * load

`pair` 1 weights bytes as the step model does (a token at position x costs 1 + x / 8,600), 0 counts them all alike;
`decode` is in tokens of prefill a request in flight. The defaults are least delay; `queue` 0 is LMetric with an idle
instance as one request; `held_up` 0 is Dynamo; both 0 and a `decode` is a linear score like Bailian's, not normalised.
"""

from __future__ import annotations

from extproc.base.model import Reason
from extproc.routing.policies import Verdict, View, lowest

BYTES = 4.0  # of a token in the simulation
POSITION = 8_600 * BYTES  # where attention costs as much as the rest of a token: 47.9 us / 5.54 ns


def choose(
    view: View,
    *,
    refetch: float = 1.0,
    queue: float = 1.0,
    held_up: float = 1.0,
    decode: float = 0.0,
    pair: float = 0.0,
) -> Verdict:
    """The lowest score, ties in turn."""
    best = max(view.hits)
    new = _work(best, view.prompt, pair)
    scores = [
        queue * waiting
        + (new + refetch * _work(hit, best, pair)) * (1 + held_up * load / (view.unit or 1))
        + decode * BYTES * load
        for hit, load, waiting in zip(view.hits, view.loads, view.unprefilled, strict=True)
    ]
    return Verdict(lowest(scores, view), Reason.SCORED)


def _work(start: float, end: float, pair: float) -> float:
    return (end - start) * (1 + pair * (start + end) / 2 / POSITION)
