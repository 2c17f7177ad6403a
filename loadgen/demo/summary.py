"""Figures of a run, from its records alone."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from loadgen.demo.agents import Record
from loadgen.results.measures import nearest_rank

WINDOW = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class Summary:
    """What a policy made of a workload. Ratios from 0 to 1, times in seconds; nan where there is nothing to measure."""

    requests: int
    failed: int
    hit_ratio: float  # cached prompt tokens / prompt tokens
    stickiness: float  # follow-ups that returned to the instance of the request before
    imbalance: float  # seconds spent by requests, busiest instance / mean, in windows of WINDOW seconds
    ttft_p50: float
    ttft_p90: float
    per_instance: Mapping[str, int]  # requests
    first_turns: Mapping[str, int]  # per instance


def summarise(records: Sequence[Record], instances: Sequence[str]) -> Summary:
    """Sum up a run over these instances (ip:port), idle ones included."""
    served = [record for record in records if record.ok]
    prompts = sum(record.prompt_tokens or 0 for record in served)
    ttfts = [record.ttft_s for record in served if record.ttft_s is not None]
    counts = Counter(record.instance for record in served)
    firsts = Counter(record.instance for record in served if record.turn == 0)
    return Summary(
        requests=len(records),
        failed=len(records) - len(served),
        hit_ratio=sum(record.cached_tokens or 0 for record in served) / prompts if prompts else math.nan,
        stickiness=_stickiness(served),
        imbalance=_imbalance(served, len(instances)),
        ttft_p50=percentile(ttfts, 0.5),
        ttft_p90=percentile(ttfts, 0.9),
        per_instance={instance: counts[instance] for instance in instances},
        first_turns={instance: firsts[instance] for instance in instances},
    )


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that `share` of the values do not exceed (nearest rank); nan of none."""
    return nearest_rank(sorted(values), share)


def _stickiness(records: Sequence[Record]) -> float:
    where = {(record.session, record.turn): record.instance for record in records}
    pairs = [
        (where[session, turn - 1], instance)
        for (session, turn), instance in where.items()
        if (session, turn - 1) in where
    ]
    return sum(before == after for before, after in pairs) / len(pairs) if pairs else math.nan


def _imbalance(records: Sequence[Record], instances: int) -> float:
    """Sum over windows of the busiest instance's load / sum of the mean loads; a load is seconds spent by requests.

    Windows, rather than moments: with a handful of requests in flight, a moment is always uneven.
    """
    loads: dict[int, dict[str | None, float]] = defaultdict(lambda: defaultdict(float))
    for record in records:
        start, end = record.started_s, record.started_s + (record.latency_s or 0.0)
        for window in range(int(start // WINDOW), int(end // WINDOW) + 1):
            loads[window][record.instance] += min(end, (window + 1) * WINDOW) - max(start, window * WINDOW)
    total = sum(sum(load.values()) for load in loads.values())
    return sum(max(load.values()) for load in loads.values()) * instances / total if total else math.nan
