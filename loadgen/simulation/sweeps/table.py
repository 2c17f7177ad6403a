"""A sweep as tables for a terminal: each policy's best over the rates, and its difference to the first policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.table import Table

from loadgen.results.intervals import Interval
from loadgen.results.measures import shown
from loadgen.simulation.run_info import off
from loadgen.simulation.sweeps.peaks import Curve, curves, more, settings
from loadgen.simulation.sweeps.sweep import Result

WIDE = 140  # columns of a table that goes into a file


def tables(results: Iterable[Result]) -> Iterator[Table]:
    """One a setting: each policy's peak."""
    for setting, members in settings(results).items():
        table = Table(title=", ".join(f"{name} {value}" for name, value in setting) or None, title_justify="left")
        for column in ("policy", "TPS within SLO", "at rate", "local hits", "reuse", "imbalance", "TTFT p50 / p90 s"):
            table.add_column(column, justify="left" if column == "policy" else "right")
        found = curves(members)
        first = next(iter(found.values()), None)
        if first is not None and len(found) > 1:
            table.add_column(f"against {first.label}", justify="right")
        for curve in found.values():
            table.add_row(*_row(curve, first))
        yield table


def notes(results: Iterable[Result]) -> Iterator[str]:
    """What a reader has to know of simulations that were not quite what was asked for."""
    results = list(results)
    left = [result.left_out for result in results if result.left_out]
    if left:
        most = max(left, key=lambda one: one.tokens)
        yield (
            f"{len(left)} of {len(results)} simulations leave out what no instance's cache holds: up to "
            f"{most.requests:.1%} of the requests and {most.tokens:.1%} of the tokens"
        )
    arriving = [
        off(result.scenario.rate, float(result.measures["requests_per_s"])) for result in results if result.measures
    ]
    if wrong := [share for share in arriving if share]:
        yield (
            f"in {len(wrong)} of {len(results)} simulations requests arrive at another rate than was offered, by up to "
            f"{max(wrong, key=abs):+.0%}: a window of long sessions varies; measure for longer"
        )


def _row(curve: Curve, first: Curve | None) -> list[str]:
    rate = curve.peak(lambda measures: measures.tps_slo)
    cells = [curve.label, _interval(curve.mean(rate, lambda measures: measures.tps_slo), "{:.0f}"), f"{rate:g}"]
    cells += [shown(curve.mean(rate, value).mean, "{:.1%}") for value in (lambda m: m.local, lambda m: m.reuse)]
    cells.append(shown(curve.mean(rate, lambda measures: measures.imbalance).mean, "{:.2f}"))
    p50, p90 = (curve.mean(rate, value).mean for value in (lambda m: m.ttft.p50, lambda m: m.ttft.p90))
    cells.append(f"{shown(p50, '{:.2f}')} / {shown(p90, '{:.1f}')}")
    if first is not None and curve is not first:
        base = first.at(first.peak(lambda measures: measures.tps_slo), lambda measures: measures.tps_slo)
        difference = more(curve.at(rate, lambda measures: measures.tps_slo), base)
        cells.append(_interval(difference, "{:+.1%}") + (" (noise)" if difference.noise else ""))
    return cells


def _interval(value: Interval, form: str) -> str:
    if not value.n:
        return "-"
    half = form.replace("+", "").format(value.half) if value.n > 1 else ""
    return form.format(value.mean) + (f" ± {half}" if half else "")
