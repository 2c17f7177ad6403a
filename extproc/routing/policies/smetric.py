"""SMetric: balance a session once, then keep it where its cache is.

    s = argmax hit
    if turn > 0 and load[s] <= max(overload * mean(load), floor) and hit[s] > hit_ratio * history:  s
    else:                                                                           argmin load, ties in turn

Source: the SMetric paper, "balanced session-centric scheduling"; the floor, `overload_floor` requests like this one, is
ours: at a mean load of 0.1 an instance with a single request in flight is ten times the mean and yet idle. Floor 0 is
the paper's literal rule. Among instances with equally long hits the least loaded is s.

A first turn ignores the cache on purpose, so that sessions which share a system prompt spread.

Loses when sessions are single-turn and share long prompts (nothing ever sticks: a cache-aware policy reuses more), and
when a first turn's load says little of its later turns (few, very long sessions).
"""

from __future__ import annotations

from extproc.base.model import Reason
from extproc.routing.policies import Verdict, View, in_turn, lowest


def choose(view: View, *, overload: float = 2.0, overload_floor: float = 1.0, hit_ratio: float = 0.5) -> Verdict:
    """Stick to the instance with the longest hit unless a guard objects; `overload` and `hit_ratio` are its guards."""
    if view.turn <= 0:
        return Verdict(lowest(view.loads, view), Reason.FIRST_TURN)
    longest = max(view.hits)
    holders = [i for i, hit in enumerate(view.hits) if hit == longest]
    load = min(view.loads[i] for i in holders)
    sticky = in_turn((i for i in holders if view.loads[i] == load), view)
    if longest > 0 and load > max(overload * sum(view.loads) / len(view.loads), overload_floor * view.unit):
        return Verdict(lowest(view.loads, view), Reason.OVERLOADED)
    if longest <= hit_ratio * view.history:
        return Verdict(lowest(view.loads, view), Reason.EVICTED)
    return Verdict(sticky, Reason.STICK)
