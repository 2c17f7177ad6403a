"""Figures 5 to 9 of the paper out of studies, the traces side by side. Only what a trace says is drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from loadgen.report.figures.style import RC, Drawn, legend, rows_of
from loadgen.study.findings import SOON_S, Study

_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
_LINES = ("-", "--", ":", "-.")
_PARTS = {
    "from the session itself": "#0072B2",
    "another session's system prompt": "#56B4E9",
    "other sessions": "#E69F00",
}
_TRIGGERS = {"agent": "#0072B2", "user": "#D55E00", "compaction": "#009E73", "not said": "#B8B8B8"}
Curve = Sequence[tuple[float, float]]


def draw(studies: Sequence[Study]) -> list[Drawn]:
    """What the studies have figures for."""
    with rc_context(RC):
        return [drawn for kind in (_reuse, _intervals, _triggers, _sessions, _balance) for drawn in kind(studies)]


def _reuse(studies: Sequence[Study]) -> Iterator[Drawn]:
    bars: dict[str, dict[str, float]] = {}
    for study in studies:
        if study.reuse is not None:
            shares = (study.reuse.within, study.reuse.system, study.reuse.other)
            bars[study.trace] = {
                part: study.reuse.ratio * (share or 0.0) for part, share in zip(_PARTS, shares, strict=True)
            }
            if study.reuse.other is None:
                bars[study.trace] = {"producer not said": study.reuse.ratio}
    if bars:
        figure = _stacked(bars, {**_PARTS, "producer not said": "#B8B8B8"}, "Share of prompt tokens")
        caption = "Prompt tokens that an infinite store would have, by the session that first produced them."
        yield Drawn("reuse", "Reusable KV", caption, figure)


def _triggers(studies: Sequence[Study]) -> Iterator[Drawn]:
    bars = {study.trace: dict(study.triggers) for study in studies if study.triggers is not None}
    if bars:
        caption = "What made agents send requests."
        yield Drawn("triggers", "Triggers", caption, _stacked(bars, _TRIGGERS, "Share of requests"))


def _intervals(studies: Sequence[Study]) -> Iterator[Drawn]:
    curves = {study.trace: study.intervals.curve for study in studies if study.intervals is not None}
    if curves:
        figure, ax = _curves(curves, "Seconds from the end of the last use", "Share of reused tokens")
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        ax.axvline(SOON_S, color="#8C8C8C", linewidth=0.8, zorder=0)
        caption = f"How soon blocks are used again; the line is at {SOON_S:.0f} s."
        yield Drawn("intervals", "Reuse intervals", caption, figure)


def _sessions(studies: Sequence[Study]) -> Iterator[Drawn]:
    curves = {study.trace: study.concentration for study in studies if study.concentration is not None}
    if curves:
        figure, ax = _curves(curves, "Largest sessions, share of all", "Share of tokens", marker="o")
        ax.set_xscale("log")
        ax.set_xticks([0.01, 0.1, 1.0])
        ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        caption = "How many of all prompt and reply tokens the largest sessions hold."
        yield Drawn("sessions", "Tokens a session", caption, figure)


def _balance(studies: Sequence[Study]) -> Iterator[Drawn]:
    curves: dict[str, Curve] = {}
    for study in studies:
        if study.balance is not None:
            values = sorted(study.balance.minutes)
            curves[study.trace] = [(value, number / len(values)) for number, value in enumerate(values, 1)]
    if curves:
        figure, ax = _curves(curves, "Tokens of the hottest instance / mean, in a minute", "Share of minutes")
        ax.set_xlim(left=1.0)
        caption = f"Each request at the instance with the fewest tokens in flight, {studies[0].instances} instances."
        yield Drawn("balance", "Balance potential", caption, figure)


def _curves(curves: dict[str, Curve], x: str, y: str, marker: str = "") -> tuple[Figure, Axes]:
    figure = Figure(figsize=(4.6, 3.2))
    ax = figure.subplots()
    for number, (label, points) in enumerate(curves.items()):
        ax.plot(
            [point for point, _ in points],
            [share for _, share in points],
            color=_COLORS[number % len(_COLORS)],
            linestyle=_LINES[number % len(_LINES)],
            marker=marker,
            label=label,
        )
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.set_ylim(0.0, 1.02)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    legend(figure, [ax])
    return figure, ax


def _stacked(bars: dict[str, dict[str, float]], colors: dict[str, str], x: str) -> Figure:
    figure = Figure(figsize=(5.2, 1.3 + 0.4 * len(bars)))
    ax = figure.subplots()
    left = [0.0] * len(bars)
    for part, color in colors.items():
        widths = [parts.get(part, 0.0) for parts in bars.values()]
        if not any(widths):
            continue
        ax.barh(range(len(bars)), widths, left=left, color=color, height=0.6, label=part)
        for row, (start, width) in enumerate(zip(left, widths, strict=True)):
            if width > 0.06:
                ax.text(start + width / 2, row, f"{width:.0%}", ha="center", va="center", color="white")
        left = [start + width for start, width in zip(left, widths, strict=True)]
    rows_of(ax, list(bars))
    ax.set_xlim(0.0, 1.0)
    ax.set_xlabel(x)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    legend(figure, [ax])
    return figure
