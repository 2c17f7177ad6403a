"""The best TPS within SLO over all rates, against the size of the global tier."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.report.figures.style import Drawn, curve, legend, looks, panels, seeds, ticks
from loadgen.report.material import Group, tps

NEEDS = "TPS within SLO against provisioning: simulations of at least two global tiers (sweep --global-ratio 0,4.6)"


def draw(group: Group) -> Iterator[Drawn]:
    """A curve a policy."""
    cases = [case for case in group.cases if case.ratio >= 0]  # a replay's is not known: nan
    if len(cases) < 2:
        return
    figure, (ax,) = panels(1, width=4.8)
    for label, look in looks(group).items():
        peaks = [(case.ratio, one.mean(one.peak(tps), tps)) for case in cases if (one := case.curves.get(label))]
        curve(ax, peaks, look, label)
    ax.set_xlabel("Global tier / local cache, tokens (0: none)")
    ax.set_ylabel("Most output tokens/s within SLO")
    ticks(ax, [case.ratio for case in cases])
    ax.set_ylim(bottom=0)
    legend(figure, [ax])
    caption = f"The rate with the highest mean, for each policy and provisioning ({seeds(cases[-1])})."
    yield Drawn("tps-provisioning", "Maximum TPS within SLO against provisioning", caption, figure)
