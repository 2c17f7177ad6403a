"""The demo's last table: what each policy made of the same workload. Draws; what is measured is `results.measures`'."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.table import Table

from loadgen.results.measures import busy, mean_imbalance, measure, shown
from loadgen.results.records import Row, RunInfo

WINDOW_S = 5.0  # of the imbalance: long enough for several requests, short enough for a run of twenty seconds
SIDE_BY_SIDE = 3  # policies that fit as columns into 80; more become rows


def comparison(runs: Sequence[tuple[RunInfo, Sequence[Row]]]) -> Table:
    """The policies side by side, the same workload for each."""
    table = Table(
        title="the same workload under each policy",
        title_justify="left",
        title_style="bold",
        caption="request-seconds: the time that requests spent at an instance",
        caption_justify="left",
    )
    columns = [_figures(info, rows) for info, rows in runs]
    table.add_column("", no_wrap=True)
    if len(runs) <= SIDE_BY_SIDE:
        for info, _ in runs:
            table.add_column(info.label, justify="right")
        for title, head in columns[0]:
            table.add_row(title, *(column[title, head] for column in columns))
    else:
        for _, head in columns[0]:
            table.add_column(head, justify="right", no_wrap=True)
        for (info, _), column in zip(runs, columns, strict=True):
            table.add_row(info.label, *column.values())
    return table


def _figures(info: RunInfo, rows: Sequence[Row]) -> dict[tuple[str, str], str]:
    """Values by their title, and by the head of a column where there are many policies."""
    found = measure(rows, info)
    uneven = mean_imbalance(busy(rows, info, WINDOW_S))
    firsts = Counter(row.instance for row in rows if row.turn == 0 and row.ok)
    return {
        ("prompt tokens found in the cache", "cached"): _percent(found.local),
        (f"request-seconds in {WINDOW_S:.0f} s windows, busiest / mean", "busiest"): shown(uneven, "{:.2f}"),
        ("TTFT p50", "TTFT p50"): shown(found.ttft.p50 * 1000, "{:.0f} ms"),
        ("TTFT p90", "p90"): shown(found.ttft.p90 * 1000, "{:.0f} ms"),
        ("follow-ups back at their session's instance", "back"): _percent(found.sticky_before),
        ("requests, failed", "requests"): f"{found.requests}, {found.failed}",
        ("first turns per instance", "first turns"): _counts(firsts[name] for name in info.instances),
        ("requests per instance", "per instance"): _counts(found.per_instance.values()),
    }


def _counts(values: Iterable[int]) -> str:
    return " ".join(map(str, values))


def _percent(share: float) -> str:
    return shown(100 * share, "{:.1f} %")
