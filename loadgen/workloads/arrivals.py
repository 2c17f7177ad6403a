"""A workload of any rate and length out of recorded sessions: sampled with replacement, as a Poisson process.

Pure. What is sampled is a session with all that forked from it; the times between its requests stay as recorded.
The copies of each begin as a Poisson process of their own, from as long before time 0 as it lasts, so at time 0 the
window holds as many sessions in their middle as it will at any later time. Their first request in it has a turn above 0
and no parent. Only copies of which a request falls into the window are drawn: a session may last years.

A copy has block names of its own, but for the leading ones that sessions share: those of its system prompt, and those
that two recorded sessions have in common.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from loadgen.workloads.trace import Fact, Runs, Trace, TraceRequest, cut, length, merged


def arrange(trace: Trace, *, rate: float, seconds: float, seed: int, max_input: int | None = None) -> Trace:
    """Requests that arrive in `seconds` seconds, `rate` a second on average over seeds.

    Args:
        trace: recorded sessions, whole ones or those that a window of time cut off.
        rate: requests a second.
        seconds: length of the workload.
        seed: of what is drawn.
        max_input: what a request may have, prompt and reply together; others go, as in `fitting`.

    Raises:
        ValueError: a rate or time that is not positive, a trace that knows no sessions, or none whose requests fit.
    """
    for name, value in (("rate", rate), ("seconds", seconds)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} {value:g}: expected a positive number")
    if not trace.facts & {Fact.SESSIONS, Fact.INFERRED_SESSIONS}:
        raise ValueError(f"trace {trace.name} does not say which requests belong to a session, so none can be sampled")
    if max_input is not None:
        trace, _ = fitting(trace, max_input)
    families = _families(trace.requests)
    if not families:
        fit = "" if max_input is None else f" of at most {max_input} tokens"
        raise ValueError(f"trace {trace.name} has no requests{fit}")
    shared = _Shared(families)
    span = 1 + max((first + count - 1 for request in trace.requests for first, count in request.blocks), default=0)
    rng = random.Random(seed)
    per_second = rate / len(trace.requests)  # copies of one family
    begun: list[tuple[float, int]] = []  # when a copy begins, its family's place
    for place, family in enumerate(families):
        for first_s, end_s in _beginnings(family, seconds):
            at = first_s + rng.expovariate(per_second)
            while at < end_s:
                begun.append((at, place))
                at += rng.expovariate(per_second)
    begun.sort()
    requests: list[TraceRequest] = []
    for copy, (at, place) in enumerate(begun):
        family = families[place]
        shift = at - family[0].arrival_s
        low = bisect_left(family, -shift, key=_arrival)
        high = bisect_left(family, seconds - shift, key=_arrival)
        kept: set[str] = set()
        for request in family[low:high]:
            own = max(shared.leading(request.blocks), request.system // trace.block_size)
            requests.append(
                replace(
                    request,
                    id=f"{request.id}@{copy}",
                    session=f"{request.session}@{copy}",
                    arrival_s=request.arrival_s + shift,
                    blocks=_renamed(request.blocks, own, copy * span),
                    parent=f"{request.parent}@{copy}" if request.parent in kept else None,
                    gap_s=request.gap_s if request.parent in kept else None,
                )
            )
            kept.add(request.id)
    requests.sort(key=_arrival)
    return Trace(trace.name, trace.block_size, requests, trace.facts | {Fact.ARRIVALS})


def fitting(trace: Trace, most: int) -> tuple[Trace, int]:
    """The trace without requests of more than `most` tokens and what went on from them, and how many those are."""
    gone: set[str] = set()
    kept: list[TraceRequest] = []
    for request in trace.requests:
        if request.input + request.output > most or request.parent in gone:
            gone.add(request.id)
        else:
            kept.append(request)
    return replace(trace, requests=kept), len(gone)


class _Shared:
    """Which block names two families have in common."""

    def __init__(self, families: Iterable[Sequence[TraceRequest]]) -> None:
        edges: list[tuple[int, int]] = []  # a name where a family's range begins (+1) or has ended (-1)
        for family in families:
            for first, end in merged({run for request in family for run in request.blocks}):
                edges += [(first, 1), (end, -1)]
        edges.sort()
        self._starts: list[int] = []
        self._ends: list[int] = []
        holders = 0
        for name, steps in groupby(edges, key=lambda edge: edge[0]):
            before, holders = holders, holders + sum(step for _, step in steps)
            if before < 2 <= holders:
                self._starts.append(name)
            elif holders < 2 <= before:
                self._ends.append(name)

    def leading(self, runs: Runs) -> int:
        """How many leading names are shared: names stand for prefixes, so none comes after one that is not."""
        shared = 0
        for first, count in runs:
            at = first
            while at < first + count:
                place = bisect_right(self._starts, at) - 1
                if place < 0 or self._ends[place] <= at:
                    return shared
                step = min(self._ends[place], first + count) - at
                at += step
                shared += step
        return shared


def _beginnings(family: Sequence[TraceRequest], seconds: float) -> Iterator[tuple[float, float]]:
    """When a copy may begin so that a request of it arrives in the window: stretches of time, ascending."""
    first_s = end_s = family[0].arrival_s - family[-1].arrival_s
    for request in reversed(family):
        begin_s = family[0].arrival_s - request.arrival_s
        if begin_s > end_s:
            yield first_s, end_s
            first_s = begin_s
        end_s = begin_s + seconds
    yield first_s, end_s


def _families(requests: Sequence[TraceRequest]) -> list[list[TraceRequest]]:
    """Requests by the session that they, or what they forked from, began in; each family in the order of arrival."""
    root: dict[str, str] = {}  # of a session
    home: dict[str, str] = {}  # of a request: the root of its session
    families: defaultdict[str, list[TraceRequest]] = defaultdict(list)
    for request in requests:
        if request.session not in root:
            root[request.session] = home.get(request.parent or "", request.session)
        home[request.id] = root[request.session]
        families[home[request.id]].append(request)
    return list(families.values())


def _renamed(runs: Runs, keep: int, offset: int) -> Runs:
    if not offset:
        return runs
    return cut(runs, 0, keep) + tuple((first + offset, count) for first, count in cut(runs, keep, length(runs)))


def _arrival(request: TraceRequest) -> float:
    return request.arrival_s
