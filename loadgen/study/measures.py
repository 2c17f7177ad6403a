"""The workload study: what a trace's sessions reuse, from whom and how soon, and how evenly they could be spread.

Figures 5 to 9 of the paper, from a trace alone, as the values of `findings`. Pure: no files, no text.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from loadgen.study.balance import MINUTE, imbalance, per_minute
from loadgen.study.findings import SOON_S, Balance, Intervals, Reuse, Spread, Study
from loadgen.study.reuse import Store
from loadgen.workloads.trace import Fact, Trace, TraceRequest
from loadgen.workloads.traces import nominal

INTERVALS_S = tuple(10 ** (step / 4) for step in range(-4, 21))  # from 0.1 s to 28 hours, for the curve
EVERY = 256  # requests between two words on progress


def study(trace: Trace, instances: int = 32, progress: Callable[[int], object] = lambda _: None) -> Study:
    """Study a trace; `progress` hears now and then how many requests more are done.

    Raises ValueError for a trace without requests and for fewer instances than one.
    """
    if not trace.requests or instances < 1:
        raise ValueError("a study needs a request and an instance at least")
    facts = trace.facts
    told = bool(facts & {Fact.SESSIONS, Fact.INFERRED_SESSIONS})
    sessions = _by_session(trace.requests) if told else {}
    turned = _turned(trace.requests) if told else []
    reuse, intervals = _reuse(trace, told, progress) if Fact.BLOCKS in facts else (None, None)
    minutes, idle = per_minute(trace.requests) if Fact.ARRIVALS in facts else ([], 0)
    balance = imbalance(trace.requests, instances) if Fact.ARRIVALS in facts else []
    tokens = sorted((sum(one.input + one.output for one in session) for session in sessions.values()), reverse=True)
    roots = [session for session in sessions.values() if session[0].parent is None]
    return Study(
        trace=trace.name,
        requests=len(trace.requests),
        duration_s=trace.duration_s,
        instances=instances,
        input=spread(request.input for request in trace.requests),
        output=spread(request.output for request in trace.requests),
        sessions=len(sessions) if told else None,
        inferred=Fact.INFERRED_SESSIONS in facts,
        forks=len(sessions) - len(roots) if told else None,
        turns=spread(len(session) for session in roots) if roots else None,
        append=spread(after.input - after.history for _, after in turned) if turned else None,
        growth=_growth(turned),
        reuse=reuse,
        intervals=intervals,
        triggers=_triggers(trace.requests) if Fact.TRIGGERS in facts else None,
        session_tokens=spread(tokens) if tokens else None,
        concentration=_concentration(tokens) if tokens else None,
        rate=spread((count / instances for count in minutes), zeros=idle) if minutes else None,
        rate_least=(0 if idle else min(minutes)) / instances if minutes else None,
        balance=_balance(balance) if balance else None,
        nominal=sum(request.duration_s is None for request in trace.requests) / len(trace.requests),
        unsaid=_unsaid(trace, bool(minutes)),
    )


def spread(values: Iterable[float], zeros: int = 0) -> Spread:
    """The points of a distribution of values that are not negative, and of so many zeros more.

    Raises ValueError for no values.
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("a distribution of nothing")
    count = zeros + len(ordered)
    ranks = (max(0, math.ceil(q * count) - 1) for q in (0.5, 0.9, 0.99))
    p50, p90, p99 = (0.0 if rank < zeros else ordered[rank - zeros] for rank in ranks)
    return Spread(count, math.fsum(ordered) / count, p50, p90, p99, ordered[-1])


def _by_session(requests: Sequence[TraceRequest]) -> dict[str, list[TraceRequest]]:
    sessions: dict[str, list[TraceRequest]] = defaultdict(list)
    for request in requests:
        sessions[request.session].append(request)
    return sessions


def _turned(requests: Sequence[TraceRequest]) -> list[tuple[TraceRequest, TraceRequest]]:
    """Follow-ups with the request that they follow in their own session."""
    known: dict[str, TraceRequest] = {}
    pairs = []
    for request in requests:
        before = known.get(request.parent or "")
        if before is not None and before.session == request.session and request.turn:
            pairs.append((before, request))
        known[request.id] = request
    return pairs


def _growth(turned: Sequence[tuple[TraceRequest, TraceRequest]]) -> Spread | None:
    grown = [after.input - before.input for before, after in turned if after.input > before.input]
    return spread(grown) if grown else None


def _reuse(trace: Trace, sessions: bool, progress: Callable[[int], object]) -> tuple[Reuse, Intervals | None]:
    store = Store()
    size = trace.block_size
    shares = {"within": 0, "system": 0, "other": 0}
    whole = 0
    waits: list[tuple[float, int]] = []  # seconds, tokens
    last_waits: list[tuple[float, int]] = []  # the same of the last block found, once a request
    clock = Fact.ARRIVALS in trace.facts
    reckoned = Fact.GAPS in trace.facts and Fact.DURATIONS not in trace.facts
    for number, request in enumerate(trace.requests, 1):
        end_s = nominal.end(request) if reckoned else request.arrival_s + (request.duration_s or 0.0)
        found = store.visit(request.blocks, request.session, end_s)
        timed = 0  # tokens of a piece whose interval is known
        for piece in found:
            start, end = piece.position * size, min((piece.position + piece.count) * size, request.input)
            own = piece.producer == request.session
            system = 0 if own else max(0, min(end, request.system) - start)
            shares["system"] += system
            shares["within" if own else "other"] += end - start - system
            # Without a clock that all share, only what a session alone has used tells when it was used last.
            timed = end - start if clock else end - max(start, request.system) if own else 0
            if timed > 0:
                waits.append((max(0.0, request.arrival_s - piece.end_s), timed))
        if found:
            whole += min(found[-1].position + found[-1].count, request.input // size) * size
            if clock or timed > 0:  # of the last piece
                last_waits.append((max(0.0, request.arrival_s - found[-1].end_s), 1))
        if number % EVERY == 0:
            progress(EVERY)
    progress(len(trace.requests) % EVERY)
    total = sum(request.input for request in trace.requests)
    tokens = sum(shares.values())
    split = sessions and tokens > 0
    told = Fact.SYSTEM in trace.facts
    reuse = Reuse(
        ratio=tokens / total,
        whole=whole / total,
        tokens=tokens,
        within=shares["within"] / tokens if split else None,
        system=shares["system"] / tokens if split and told else None,
        other=shares["other"] / tokens if split else None,
    )
    return reuse, _intervals(waits, last_waits) if waits else None


def _intervals(waits: list[tuple[float, int]], last_waits: list[tuple[float, int]]) -> Intervals:
    waits.sort()
    total = sum(tokens for _, tokens in waits)
    points = iter((0.5, 0.9, 0.99))
    quantiles: list[float] = []
    curve: list[tuple[float, float]] = []
    below = 0
    due = next(points, None)
    grid = iter(INTERVALS_S)
    mark = next(grid, None)
    for seconds, tokens in waits:
        while mark is not None and seconds > mark:
            curve.append((mark, below / total))
            mark = next(grid, None)
        below += tokens
        while due is not None and below >= due * total:
            quantiles.append(seconds)
            due = next(points, None)
    curve += [(mark, 1.0)] if mark is not None else []
    return Intervals(
        soon=_within(waits, SOON_S),
        soon_requests=_within(last_waits, SOON_S),
        p50=quantiles[0],
        p90=quantiles[1],
        p99=quantiles[2],
        curve=curve,
    )


def _within(waits: Sequence[tuple[float, int]], limit: float) -> float:
    total = sum(weight for _, weight in waits)
    return sum(weight for seconds, weight in waits if seconds <= limit) / total if total else math.nan


def _triggers(requests: Sequence[TraceRequest]) -> dict[str, float]:
    counts = Counter("not said" if request.trigger is None else str(request.trigger) for request in requests)
    return {trigger: count / len(requests) for trigger, count in counts.most_common()}


def _concentration(tokens: Sequence[int]) -> list[tuple[float, float]]:
    """`tokens`: of the sessions, most first."""
    total = sum(tokens)
    return [
        (top, sum(tokens[: math.ceil(top * len(tokens))]) / total) for top in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
    ]


def _balance(minutes: Sequence[float]) -> Balance:
    return Balance(median=spread(minutes).p50, worst=max(minutes), minutes=minutes)


def _unsaid(trace: Trace, timed: bool) -> list[str]:
    """What the format does not say, and what is therefore missing or assumed."""
    facts = trace.facts
    unsaid = []
    if Fact.BLOCKS not in facts:
        unsaid.append("which prompts share blocks: no reuse, no intervals")
    if Fact.INFERRED_SESSIONS in facts:
        unsaid.append(
            "sessions: they are inferred, a request goes on from the earlier one whose whole prompt it begins with"
        )
    elif Fact.SESSIONS not in facts:
        unsaid.append("which requests belong to a session: no turns, no split of the reuse, no tokens a session")
    if Fact.BLOCKS in facts and Fact.SYSTEM not in facts:
        unsaid.append("how long system prompts are: their reuse is among that from other sessions")
    if Fact.TRIGGERS not in facts:
        unsaid.append("what triggered a request")
    if Fact.ARRIVALS not in facts:
        unsaid.append(
            "when sessions began: no requests a minute, no balance; intervals of what a session produced itself, alone"
        )
    elif not timed:
        unsaid.append(f"more than {MINUTE:.0f} s: no requests a minute, no balance")
    missing = sum(request.duration_s is None for request in trace.requests) / len(trace.requests)
    if missing:
        unsaid.append(
            f"how long {missing:.0%} of the requests took: for the balance {nominal.BASE_S} s + "
            f"{1000 * nominal.TOKEN_S:.1f} ms a token of the reply; intervals count from their "
            + ("end by that measure" if facts >= {Fact.GAPS} and Fact.DURATIONS not in facts else "arrival")
        )
    return unsaid
