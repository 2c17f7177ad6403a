"""What a run amounts to: the paper's measures, from rows alone. No files, no simulator; intervals are `intervals.py`'s.

Requests due in the run's window count, and their tokens count where they were due; what is unfinished has failed.
Loads are what instances did during the window, whenever it was due. What the rows cannot answer is nan.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from loadgen.results.records import Row, RunInfo, Slo

MINUTE = 60.0  # seconds: the window of the paper's heatmaps and mean imbalance
HALF_MINUTE = 30.0  # seconds: the window of its distribution of imbalance


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A distribution in a few points (nearest rank); all nan where there are no values."""

    p50: float
    p75: float
    p90: float
    p95: float
    p99: float
    max: float
    mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """What a policy made of a workload. Times in seconds, ratios from 0 to 1; per second is of the window's seconds."""

    requests: int
    failed: int  # unfinished ones too
    requests_per_s: float  # that were due
    tps_slo: float  # output tokens a second of the requests that met the service level: the paper's "TPS within SLO"
    tps_slo_all: float  # the same with their prompt tokens
    tps: float  # output tokens a second of all requests that ended well
    slo_share: float  # requests that met the service level
    local: float  # prompt tokens found in the instance's own cache / prompt tokens
    fetched: float  # the same of the global tier
    reuse: float  # both
    sticky_first: float  # follow-ups that came to the instance of their session's first turn
    sticky_before: float  # the same of the turn before
    imbalance: float  # hottest / mean instance in tokens (prompt and output), mean over minutes: the paper's
    imbalance_computed: float  # the same without the prompt tokens that were reused
    imbalance_30s: Quantiles  # hottest / mean in tokens, over windows of 30 s
    ttft: Quantiles
    tpot: Quantiles
    reasons: Mapping[str, int]  # requests by the reason of their decision
    per_instance: Mapping[str, int]  # requests; idle instances have 0


def measure(rows: Iterable[Row], info: RunInfo, slo: Slo | None = None) -> Measures:
    """Sum up a run; without `slo` by the run's own service level (`slo_of`).

    Raises ValueError for a window without length.
    """
    rows = list(rows)
    slo = slo or slo_of(info)
    start, end = info.window
    if end <= start:
        raise ValueError(f"a window from {start} to {end} s has no length")
    seconds = end - start
    due = [row for row in rows if start <= row.due_s < end]
    done = [row for row in due if row.ok]
    met = [row for row in done if slo.met(row)]
    local, fetched = _hits(due)
    output = sum(row.produced for row in met)
    first, before = stickiness(rows, info.window)
    where = Counter(row.instance for row in due if row.instance is not None)
    return Measures(
        requests=len(due),
        failed=len(due) - len(done),
        requests_per_s=len(due) / seconds,
        tps_slo=output / seconds,
        tps_slo_all=(output + sum(row.input for row in met)) / seconds,
        tps=sum(row.produced for row in done) / seconds,
        slo_share=len(met) / len(due) if due else math.nan,
        local=local,
        fetched=fetched,
        reuse=local + (0.0 if math.isnan(fetched) else fetched),
        sticky_first=first,
        sticky_before=before,
        imbalance=_mean(imbalances(loads(rows, info, MINUTE))),
        imbalance_computed=_mean(imbalances(loads(rows, info, MINUTE, computed=True))),
        imbalance_30s=quantiles(imbalances(loads(rows, info, HALF_MINUTE))),
        ttft=quantiles(row.ttft_s for row in due if row.ttft_s is not None),
        tpot=quantiles(row.tpot_s for row in done if row.tpot_s is not None),
        reasons=dict(Counter(row.reason for row in due if row.reason is not None).most_common()),
        per_instance={name: where[name] for name in dict.fromkeys([*info.instances, *sorted(where)])},
    )


def slo_of(info: RunInfo) -> Slo:
    """The service level in a run's settings: slo_ttft_s, slo_ttft_per_token_s, slo_tpot_s; absent ones are defaults."""
    given = {field.name: info.settings.get(f"slo_{field.name}") for field in fields(Slo)}
    return Slo(**{name: float(value) for name, value in given.items() if value is not None})


def load_measures(value: Mapping[str, Any]) -> Measures:
    """Measures out of JSON, where nan is null. Raises msgspec.ValidationError."""

    def numbers(value: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: math.nan if inner is None else numbers(inner) if isinstance(inner, Mapping) else inner
            for name, inner in value.items()
        }

    return msgspec.convert(numbers(value), Measures)


def loads(rows: Iterable[Row], info: RunInfo, width_s: float, *, computed: bool = False) -> list[list[float]]:
    """Tokens that each instance (a column, as in `info.instances`) processed in each whole `width_s` of the window.

    As vLLM counts them: a prompt with its first token, reused blocks included unless only what was `computed` is
    asked for; output tokens as they come, at their mean rate. What never began or never ended counts as far as it got.
    """
    start, end = info.window
    column = {name: number for number, name in enumerate(info.instances)}
    table = [[0.0] * len(column) for _ in range(int((end - start) / width_s + 1e-9))]
    for row in rows:
        if row.first_s is None:
            continue
        prompt = row.input - ((row.local or 0) + (row.fetched or 0) if computed else 0)
        window = math.floor((row.first_s - start) / width_s)
        if row.instance in column and 0 <= window < len(table):
            table[window][column[row.instance]] += prompt
        decoder = row.decoder or row.instance
        if decoder in column and row.end_s is not None:
            _spread(table, column[decoder], row.first_s - start, row.end_s - start, width_s, row.produced)
    return table


def _spread(table: list[list[float]], column: int, begin: float, end: float, width: float, tokens: float) -> None:
    """Divide tokens over the windows between two times, the last included."""
    for window in range(max(0, math.floor(begin / width)), min(len(table) - 1, math.floor(end / width)) + 1):
        overlap = min(end, (window + 1) * width) - max(begin, window * width)
        table[window][column] += tokens * (overlap / (end - begin) if end > begin else 1.0)


def busy(rows: Iterable[Row], info: RunInfo, width_s: float) -> list[list[float]]:
    """Request-seconds of each instance (a column) in each `width_s` of the window: how long requests were there."""
    start, end = info.window
    column = {name: number for number, name in enumerate(info.instances)}
    table = [[0.0] * len(column) for _ in range(math.ceil((end - start) / width_s - 1e-9))]
    for row in rows:
        if row.instance in column and row.end_s is not None:
            spent = row.end_s - row.sent_s
            _spread(table, column[row.instance], row.sent_s - start, row.end_s - start, width_s, spent)
    return table


def mean_imbalance(table: Sequence[Sequence[float]]) -> float:
    """Hottest / mean over windows that count as much as was done in them: for runs of a few windows, where the last one
    is nearly idle and says little."""
    done = [sum(row) for row in table if sum(row) > 0]
    return sum(map(math.prod, zip(imbalances(table), done, strict=True))) / sum(done) if done else math.nan


def imbalances(table: Iterable[Sequence[float]]) -> list[float]:
    """Hottest / mean of each window that did anything."""
    return [max(row) * len(row) / sum(row) for row in table if sum(row) > 0]


def stickiness(rows: Iterable[Row], window: tuple[float, float]) -> tuple[float, float]:
    """Shares of the window's follow-ups (turn above 0) that came to the instance of the first turn, of the turn before.

    The first turn is the session's last turn 0 before it (a compaction begins anew), or whatever came first of it; the
    turn before is the last request sent with one turn less, so with forks it may be a sibling's.
    """
    first: dict[str, str] = {}
    last: dict[tuple[str, int], str] = {}
    to_first, to_before = [], []
    for row in sorted(rows, key=lambda row: row.sent_s):
        if row.instance is None:
            continue
        if row.turn > 0 and window[0] <= row.due_s < window[1]:
            if row.session in first:
                to_first.append(first[row.session] == row.instance)
            if (row.session, row.turn - 1) in last:
                to_before.append(last[row.session, row.turn - 1] == row.instance)
        if row.turn == 0 or row.session not in first:
            first[row.session] = row.instance
        last[row.session, row.turn] = row.instance
    return _mean(to_first), _mean(to_before)


def shown(value: float, form: str) -> str:
    """A measure by a format such as "{:.1%}"; a dash for what the rows could not answer."""
    return "-" if math.isnan(value) else form.format(value)


def quantiles(values: Iterable[float]) -> Quantiles:
    """A distribution's points."""
    ordered = sorted(values)
    p50, p75, p90, p95, p99, most = (nearest_rank(ordered, share) for share in (0.5, 0.75, 0.9, 0.95, 0.99, 1.0))
    return Quantiles(p50, p75, p90, p95, p99, most, _mean(ordered))


def nearest_rank(ordered: Sequence[float], share: float) -> float:
    """The smallest of ascending values that `share` of them do not exceed; nan of none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def _hits(rows: Iterable[Row]) -> tuple[float, float]:
    """Local and fetched share of the prompt tokens, of the rows that say what was local."""
    sums: dict[str, int] = defaultdict(int)
    for row in rows:
        if row.local is not None:
            sums["input"] += row.input
            sums["local"] += row.local
            if row.fetched is not None:
                sums["known"] += 1
                sums["fetched"] += row.fetched
    if not sums["input"]:
        return math.nan, math.nan
    return sums["local"] / sums["input"], sums["fetched"] / sums["input"] if sums["known"] else math.nan


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
