"""What share of the prompt tokens came from the instance's own cache, and from the global tier."""

from __future__ import annotations

import math
from collections.abc import Iterator

from matplotlib.ticker import PercentFormatter

from loadgen.report.figures.style import (
    GLOBAL,
    LOCAL,
    Drawn,
    legend,
    panels,
    plain_rows,
    provision,
    rate_words,
    rows_of,
    spread,
)
from loadgen.report.material import Case, Group

NEEDS = "reuse: rows that tell how many prompt tokens were cached"


def draw(group: Group) -> Iterator[Drawn]:
    """A panel a provisioning, a stacked bar a policy."""
    shown = spread([case for case in group.cases if _bars(case)])
    if not shown:
        return
    labels = [label for label in group.policies if any(label in _bars(case) for case in shown)]
    width = 4.8 if len(shown) == 1 else 2.7
    figure, axes = panels(len(shown), width=width, height=1.1 + 0.3 * len(labels))
    for ax, case in zip(axes, shown, strict=True):
        for label, (local, fetched) in _bars(case).items():
            row = labels.index(label)
            ax.barh(row, local, 0.65, color=LOCAL, label="local cache")
            if fetched > 0:
                ax.barh(row, fetched, 0.65, local, color=GLOBAL, label="global tier")
            ax.text(local + fetched + 0.02, row, f"{local + fetched:.0%}", va="center", fontsize=8)
        title = provision(case.ratio)
        ax.set_title(f"{title}\n{rate_words(group, case.rate)}" if title else rate_words(group, case.rate))
        ax.set_xlim(0, 1.12)
        ax.set_xticks([0, 0.25, 0.5, 0.75, 1])
        ax.xaxis.set_major_formatter(PercentFormatter(1))
        ax.set_xlabel("Prompt tokens reused")
        plain_rows(ax)
    rows_of(axes[0], labels)
    legend(figure, axes)
    caption = "Shares of all prompt tokens, by the tier in which they were found; the mean over seeds."
    yield Drawn("reuse", "KV reuse, local and global", caption, figure)


def _bars(case: Case) -> dict[str, tuple[float, float]]:
    """Local and fetched share by label, at the case's rate; without the labels that do not know."""
    found = {}
    for label, curve in case.curves.items():
        local = curve.mean(case.rate, lambda measures: measures.local).mean
        fetched = curve.mean(case.rate, lambda measures: measures.fetched).mean
        if not math.isnan(local):
            found[label] = (local, 0.0 if math.isnan(fetched) else fetched)
    return found
