"""How unevenly instances are loaded: the hottest one's tokens over the mean instance's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from matplotlib.axes import Axes

from loadgen.report.figures.style import Drawn, Look, dot, legend, looks, panels, plain_rows, rows_of, seeds, where
from loadgen.report.material import Case, Group, Trail
from loadgen.results.measures import Quantiles

NEEDS = "imbalance: rows that tell the instance, over at least a minute"
_POINTS = ("p50", "p75", "p90", "p99")


def draw(group: Group) -> Iterator[Drawn]:
    """The mean over minutes, and the distribution over half minutes: whole where there are rows, else its quantiles."""
    case, style, trails = group.main, looks(group), group.trails()
    means = {label: curve.mean(case.rate, lambda measures: measures.imbalance) for label, curve in case.curves.items()}
    labels = [label for label, mean in means.items() if not math.isnan(mean.mean)]
    if not labels:
        return
    whole = all(label in trails for label in labels)
    figure, (left, right) = panels(2, width=3.9, height=max(2.6, 1.1 + 0.28 * len(labels)), share=not whole)
    for row, label in enumerate(labels):
        mean = means[label]
        dot(left, row, mean, style[label])
        left.annotate(f"{mean.mean:.2f}", (mean.mean, row), (0, 6), textcoords="offset points", ha="center", fontsize=8)
    rows_of(left, labels)
    left.margins(x=0.15)
    left.set_xlabel("Hottest / mean instance, mean over minutes")
    if whole:
        _distribution(right, labels, trails, style)
        legend(figure, [right])
    else:
        _quantiles(right, labels, case, style)
    right.set_xlabel("Hottest / mean instance, windows of 30 s")
    how = (
        "all windows of the runs whose rows were given"
        if whole
        else "ticks at the median, p75, p90 and p99 of the windows"
    )
    caption = f"Tokens (prompt and output) an instance processed, {where(group, case)} ({seeds(case)}). Right: {how}."
    yield Drawn("imbalance", "Load imbalance", caption, figure)


def _distribution(
    ax: Axes, labels: Sequence[str], trails: Mapping[str, Sequence[Trail]], style: Mapping[str, Look]
) -> None:
    for label in labels:
        windows = sorted(window for trail in trails[label] for window in trail.windows)
        ax.step(
            windows,
            [(number + 1) / len(windows) for number in range(len(windows))],
            where="post",
            color=style[label].color,
            linestyle=style[label].line,
            label=label,
        )
    ax.set_ylim(0, 1.02)
    ax.set_ylabel("Share of windows")


def _quantiles(ax: Axes, labels: Sequence[str], case: Case, style: Mapping[str, Look]) -> None:
    for row, label in enumerate(labels):
        points = [_quantile(case, label, name) for name in _POINTS]
        ax.plot(points, [row] * len(points), color=style[label].color, linewidth=1.2)
        ax.plot(points[1:], [row] * (len(points) - 1), "|", color=style[label].color, markersize=10)
        ax.plot(points[0], row, style[label].marker, color=style[label].color)
    plain_rows(ax)


def _quantile(case: Case, label: str, name: str) -> float:
    """A quantile of the windows, mean over seeds."""

    def value(points: Quantiles) -> float:
        found: float = getattr(points, name)
        return found

    return case.curves[label].mean(case.rate, lambda measures: value(measures.imbalance_30s)).mean
