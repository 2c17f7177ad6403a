"""TPS within SLO side by side, where everything was run at a single rate."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.report.figures.style import Drawn, dot, looks, panels, rows_of, seeds, where
from loadgen.report.material import Group, tps

NEEDS = ""  # who has curves over rates does not miss it


def draw(group: Group) -> Iterator[Drawn]:
    """A row a policy; nothing where there are curves over rates, which say more."""
    if any(len(curve.rates) > 1 for case in group.cases for curve in case.curves.values()):
        return
    case, style = group.main, looks(group)
    figure, (ax,) = panels(1, width=5.2, height=1.0 + 0.32 * len(case.curves))
    for row, (label, curve) in enumerate(case.curves.items()):
        value = curve.mean(case.rate, tps)
        dot(ax, row, value, style[label])
        text, above = f"{value.mean:,.0f}", (0, 6)
        ax.annotate(text, (value.mean, row), above, textcoords="offset points", ha="center", fontsize=8)
    rows_of(ax, list(case.curves))
    ax.set_xlim(0, ax.get_xlim()[1] * 1.04)
    ax.set_xlabel("Output tokens/s within SLO")
    caption = (
        f"Output tokens a second of the requests that met both service levels, {where(group, case)}, {seeds(case)}."
    )
    yield Drawn("tps", "TPS within SLO", caption, figure)
