"""TPS within SLO against the offered rate: where each policy saturates."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.report.figures.style import Drawn, curve, legend, looks, panels, provision, rate_axis, seeds, spread, ticks
from loadgen.report.material import Group, tps

NEEDS = "TPS within SLO against rate: simulations of at least two rates (sweep --rate 6,8,10)"


def draw(group: Group) -> Iterator[Drawn]:
    """A panel a provisioning, a curve a policy."""
    cases = [case for case in group.cases if any(len(one.rates) > 1 for one in case.curves.values())]
    if not cases:
        return
    shown, style = spread(cases), looks(group)
    figure, axes = panels(len(shown), width=4.8 if len(shown) == 1 else 3.2)
    for ax, case in zip(axes, shown, strict=True):
        for label, rates in case.curves.items():
            curve(ax, ((rate, rates.mean(rate, tps)) for rate in rates.rates), style[label], label)
        ax.set_title(provision(case.ratio))
        ax.set_xlabel(rate_axis(group))
        ticks(ax, sorted({rate for one in case.curves.values() for rate in one.rates}))
    axes[0].set_ylim(bottom=0)  # of all panels, and only now: it ends their scaling
    axes[0].set_ylabel("Output tokens/s within SLO")
    legend(figure, axes)
    caption = f"Output tokens a second of the requests that met both service levels ({seeds(shown[-1])})."
    yield Drawn("tps-rate", "TPS within SLO against the offered rate", caption, figure)
