"""The same results as tables: text cells for Markdown and HTML, numbers for JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from loadgen.report.material import Case, Group, Material, margin, tps
from loadgen.results.intervals import Interval, mean_ci
from loadgen.results.measures import Measures
from loadgen.simulation.sweeps.peaks import Curve, Value

Cell = Callable[[Interval], str]


@dataclass(frozen=True)
class Table:
    """A title, a row of headings, rows of text."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def number(form: str) -> Cell:
    """Mean ± half width, in a format; a dash where nothing is known."""

    def cell(interval: Interval) -> str:
        if math.isnan(interval.mean):
            return "-"
        half = "" if math.isnan(interval.half) else f" ± {interval.half:{form.replace('+', '')}}"
        return f"{interval.mean:{form}}{half}"

    return cell


_WORK: Mapping[str, tuple[Value, Cell]] = {
    "TPS within SLO": (tps, number(".0f")),
    "with prompt tokens": (lambda m: m.tps_slo_all, number(",.0f")),
    "within SLO": (lambda m: m.slo_share, number(".1%")),
    "local hits": (lambda m: m.local, number(".1%")),
    "fetched": (lambda m: m.fetched, number(".1%")),
    "reuse": (lambda m: m.reuse, number(".1%")),
    "hottest / mean": (lambda m: m.imbalance, number(".2f")),
    "to first turn's": (lambda m: m.sticky_first, number(".1%")),
    "to turn before's": (lambda m: m.sticky_before, number(".1%")),
    "requests": (lambda m: m.requests, number(".0f")),
    "failed": (lambda m: m.failed, number(".1f")),
}
_TIMES: Mapping[str, tuple[Value, Cell]] = {
    "TTFT p50 s": (lambda m: m.ttft.p50, number(".2f")),
    "p90": (lambda m: m.ttft.p90, number(".1f")),
    "p95": (lambda m: m.ttft.p95, number(".1f")),
    "p99": (lambda m: m.ttft.p99, number(".1f")),
    "TPOT p50 ms": (lambda m: m.tpot.p50 * 1e3, number(".1f")),
    "p90 ms": (lambda m: m.tpot.p90 * 1e3, number(".1f")),
    "p95 ms": (lambda m: m.tpot.p95 * 1e3, number(".1f")),
    "p99 ms": (lambda m: m.tpot.p99 * 1e3, number(".1f")),
    "30 s imbalance p50": (lambda m: m.imbalance_30s.p50, number(".2f")),
    "p75 ": (lambda m: m.imbalance_30s.p75, number(".2f")),
    "p90 ": (lambda m: m.imbalance_30s.p90, number(".2f")),
    "p99 ": (lambda m: m.imbalance_30s.p99, number(".2f")),
}


def tables(group: Group) -> Iterator[Table]:
    """All tables of a group: peaks, each provisioning at its rate, every rate, reasons. All labels are in them."""
    yield _peaks(group)
    for case in group.all_cases:
        at = f"{tier(case)}rate {case.rate:g}"
        curves = [curve for curve in case.curves.values() if case.rate in curve.points]
        yield _measured(f"Work and balance, {at}", curves, case.rate, _WORK)
        yield _measured(f"Latency and windows, {at}", curves, case.rate, _TIMES)
    for case in group.all_cases:
        rates = sorted({rate for curve in case.curves.values() for rate in curve.rates})
        if len(rates) > 1:
            show = number(".0f")
            rows = [[label, *(show(curve.mean(r, tps)) for r in rates)] for label, curve in case.curves.items()]
            yield Table(
                f"TPS within SLO by rate, {tier(case)}".rstrip(", "), ["policy", *map("{:g}".format, rates)], rows
            )
    reasons = _reasons(group.main)
    if reasons.rows:
        yield reasons


def tier(case: Case) -> str:
    """A case's provisioning as the beginning of a sentence, or nothing."""
    if math.isnan(case.ratio):
        return ""
    return "no global tier, " if case.ratio == 0 else f"global/local {case.ratio:g}, "


def _peaks(group: Group) -> Table:
    """Each policy's best rate, and how much more it does than the first policy, over the same rates and seeds."""
    first = next(iter(group.policies))
    header = ["policy", "global/local", "max TPS within SLO", "at rate", "seeds", f"against {first}"]
    rows = []
    for case in group.all_cases:
        base = case.curves.get(first)
        for label, curve in case.curves.items():
            rate = curve.peak(tps)
            value = curve.mean(rate, tps)
            against = ""
            if base is not None and label != first:
                difference = margin(curve, base)
                against = number("+.1%")(difference) + (" (noise)" if difference.noise else "")
            ratio = "-" if math.isnan(case.ratio) else f"{case.ratio:g}"
            rows.append([label, ratio, number(".0f")(value), f"{rate:g}", str(value.n), against])
    return Table("Maximum output tokens a second within SLO", header, rows)


def _measured(title: str, curves: Sequence[Curve], rate: float, columns: Mapping[str, tuple[Value, Cell]]) -> Table:
    rows = [[curve.label, *(show(curve.mean(rate, value)) for value, show in columns.values())] for curve in curves]
    return Table(title, ["policy", *(name.strip() for name in columns)], rows)


def _reasons(case: Case) -> Table:
    counts: dict[str, Counter[str]] = {}
    for label, curve in case.curves.items():
        counts[label] = Counter()
        for measures in curve.points.get(case.rate, {}).values():
            counts[label].update(measures.reasons)
    names = sorted({name for counter in counts.values() for name in counter})
    rows = [
        [label, *(f"{counter[name] / counter.total():.1%}" if counter[name] else "-" for name in names)]
        for label, counter in counts.items()
        if counter
    ]
    return Table(f"Reasons of decisions, {tier(case)}rate {case.rate:g}", ["policy", *names], rows)


def as_markdown(material: Material) -> str:
    """All tables of all groups."""
    lines = [f"> {note}\n" for note in material.notes]
    for group in material.groups:
        lines.append(f"## {group.title}\n")
        for table in tables(group):
            lines.append(f"### {table.title}\n")
            lines.append("| " + " | ".join(table.header) + " |")
            lines.append("|---" + "|---:" * (len(table.header) - 1) + "|")
            lines += ["| " + " | ".join(row) + " |" for row in table.rows]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def as_json(material: Material) -> dict[str, Any]:
    """Every measure of every policy, provisioning and rate: mean, half of the 95 % interval, seeds; null if unknown."""
    return {
        "notes": list(material.notes),
        "groups": [
            {
                "setting": dict(group.setting),
                "results": [
                    {
                        "policy": label,
                        "global_ratio": case.ratio,
                        "rate": rate,
                        "seeds": sorted(curve.points[rate]),
                        "measures": _summary(curve.points[rate].values()),
                    }
                    for case in group.all_cases
                    for label, curve in case.curves.items()
                    for rate in curve.rates
                ],
            }
            for group in material.groups
        ],
    }


def _summary(seeds: Iterable[Measures]) -> dict[str, Any]:
    flat = [dict(_flat(msgspec.to_builtins(measures))) for measures in seeds]
    names = dict.fromkeys(name for values in flat for name in values)
    found = {}
    for name in names:
        interval = mean_ci(values.get(name, math.nan) for values in flat)
        found[name] = {"mean": interval.mean, "half": interval.half, "n": interval.n}
    return found


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Numbers by dotted name; the counts of instances and reasons, whose names differ from run to run, are left out."""
    for name, inner in value.items():
        if not isinstance(inner, Mapping):
            yield prefix + name, inner
        elif name not in ("reasons", "per_instance"):
            yield from _flat(inner, f"{prefix}{name}.")
