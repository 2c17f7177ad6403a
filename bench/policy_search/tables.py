"""Results of a case -> Markdown. Percentages are means over paired seeds with 95 % intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from loadgen.results.intervals import Interval
from loadgen.results.measures import Measures
from loadgen.simulation.sweeps.peaks import Curve, Value, more


def within_slo(measures: Measures) -> float:
    """Output tokens a second of requests that met the service level."""
    return measures.tps_slo


def _percent(interval: Interval) -> str:
    mark = "**" if interval.clear else ""
    return f"{mark}{100 * interval.mean:+.1f}{mark} ± {100 * interval.half:.1f} %"


COLUMNS: Mapping[str, tuple[Value, str]] = {
    "SLO met": (lambda m: 100 * m.slo_share, "{:.1f} %"),
    "local": (lambda m: 100 * m.local, "{:.0f} %"),
    "fetched": (lambda m: 100 * m.fetched, "{:.0f} %"),
    "TTFT p50, s": (lambda m: m.ttft.p50, "{:.2f}"),
    "p90": (lambda m: m.ttft.p90, "{:.1f}"),
    "TPOT p90, ms": (lambda m: 1000 * m.tpot.p90, "{:.1f}"),
    "max/mean": (lambda m: m.imbalance, "{:.2f}"),
}


def row(*cells: str) -> str:
    """One line of a table."""
    return "| " + " | ".join(cells) + " |"


def against_first(name: str, curves: Sequence[Curve]) -> Iterator[str]:
    """All against the first, at its peak and at their own; the other measures at the first's peak."""
    first = curves[0]
    peak = first.peak(within_slo)
    rates = ", ".join(f"{rate:g}" for rate in first.rates)
    yield f"**{name}**; {first.label} peaks at {peak:g} requests/s, of {rates}"
    yield ""
    yield row("policy", "peak TPS", "peak to peak", f"at {peak:g}/s", "at the highest rate", *COLUMNS)
    yield row(*["---"] * (5 + len(COLUMNS)))
    last = first.rates[-1]
    for curve in curves:
        own = curve.peak(within_slo)
        margins = [
            _percent(more(curve.at(mine, within_slo), first.at(theirs, within_slo)))
            for mine, theirs in ((own, peak), (peak, peak), (last, last))
        ]
        best = f"{curve.mean(own, within_slo).mean:,.0f} at {own:g}/s"
        others = [text.format(curve.mean(peak, value).mean) for value, text in COLUMNS.values()]
        yield row(curve.label, best, *(margins if curve is not first else ["", "", ""]), *others)
    yield ""


MARGIN_HEAD = (
    row(
        "case",
        "SMetric's peak",
        "best-tuned baseline, its peak",
        "margin at peaks",
        "per rate, against the best at that rate",
    )
    + "\n"
    + row(*["---"] * 5)
)


def margin(name: str, curves: Sequence[Curve]) -> str:
    """The first against the best of the others: at their peaks, and at each rate against whoever is best there."""
    first, *others = curves
    peak = first.peak(within_slo)
    best = max(others, key=lambda curve: curve.mean(curve.peak(within_slo), within_slo).mean)
    at = best.peak(within_slo)
    rates = []
    for rate in first.rates:
        rival = max(others, key=lambda curve: curve.mean(rate, within_slo).mean)
        rates.append(
            f"{rate:g}: {_percent(more(first.at(rate, within_slo), rival.at(rate, within_slo)))} ({rival.label})"
        )
    return row(
        name,
        f"{first.mean(peak, within_slo).mean:,.0f} at {peak:g}/s",
        f"{best.label}: {best.mean(at, within_slo).mean:,.0f} at {at:g}/s",
        _percent(more(first.at(peak, within_slo), best.at(at, within_slo))),
        "; ".join(rates),
    )
