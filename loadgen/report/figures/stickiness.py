"""How many follow-ups return to where their session was."""

from __future__ import annotations

import math
from collections.abc import Iterator

from matplotlib.ticker import PercentFormatter

from loadgen.report.figures.style import Drawn, dot, legend, looks, panels, rows_of, seeds, where
from loadgen.report.material import Group

NEEDS = "stickiness: rows of follow-ups that tell the instance"


def draw(group: Group) -> Iterator[Drawn]:
    """A row a policy: a full marker for the first turn's instance, an empty one for that of the turn before."""
    case, style = group.main, looks(group)
    first = {
        label: curve.mean(case.rate, lambda measures: measures.sticky_first) for label, curve in case.curves.items()
    }
    before = {
        label: curve.mean(case.rate, lambda measures: measures.sticky_before) for label, curve in case.curves.items()
    }
    labels = [label for label in first if not math.isnan(first[label].mean)]
    if not labels:
        return
    figure, (ax,) = panels(1, width=5.2, height=1.2 + 0.3 * len(labels))
    for row, label in enumerate(labels):
        look = style[label]
        for values, face, offset in ((first, look.color, -0.14), (before, "white", 0.14)):
            dot(ax, row + offset, values[label], look, face=face, bounded=True)
    for face, text in (("#555555", "first turn's instance"), ("white", "instance of the turn before")):
        ax.plot([], [], "o", color="#555555", markerfacecolor=face, label=text)
    rows_of(ax, labels)
    ax.set_xlim(-0.03, 1.03)
    ax.xaxis.set_major_formatter(PercentFormatter(1))
    ax.set_xlabel("Follow-ups that return")
    legend(figure, [ax])
    caption = f"Share of requests with a turn above 0, {where(group, case)} ({seeds(case)})."
    yield Drawn("stickiness", "Session stickiness", caption, figure)
