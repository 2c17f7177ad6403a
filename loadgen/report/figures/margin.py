"""How much more or less policies do than the first one, over the same seeds: a few per cent, which curves hide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from loadgen.report.figures.style import Drawn, Look, curve, legend, looks, panels, rate_axis, ticks, where
from loadgen.report.material import Group, margin, tps
from loadgen.results.intervals import Interval
from loadgen.simulation.sweeps.peaks import more

NEEDS = "margins: two policies over the same seeds and rates"

Line = Sequence[tuple[float, Interval]]


def draw(group: Group) -> Iterator[Drawn]:
    """Each policy against the first: by rate, and at their peaks by provisioning."""
    first, style = next(iter(group.policies)), looks(group)
    by_rate = {label: line for label in style if label != first and (line := _by_rate(group, first, label))}
    by_tier = {label: line for label in style if label != first and (line := _by_tier(group, first, label))}
    lines = [
        (lines, axis)
        for lines, axis in ((by_rate, rate_axis(group)), (by_tier, "Global tier / local cache, tokens (0: none)"))
        if any(len(line) > 1 for line in lines.values())
    ]
    if not lines:
        return
    figure, axes = panels(len(lines), width=4.8 if len(lines) == 1 else 3.8)
    for ax, (curves, axis) in zip(axes, lines, strict=True):
        _panel(ax, curves, style)
        ax.set_xlabel(axis)
    low, high = axes[0].get_ylim()
    axes[0].set_ylim(max(low, -1.05), min(high, 1.05))  # a bar of few seeds may be longer, and would hide the rest
    axes[0].set_ylabel(f"TPS within SLO against {first}")
    legend(figure, axes)
    parts = [f"by rate, {where(group, group.main).partition(', ')[2]}".rstrip(", ")] if lines[0][0] is by_rate else []
    parts += ["each at its best rate, by provisioning"] if lines[-1][0] is by_tier else []
    caption = (
        f"How much more each policy does than {first} ({'; '.join(parts)}): mean of the relative differences "
        "over the same seeds, with 95 % confidence intervals. A bar that crosses zero is noise."
    )
    yield Drawn("margin", f"Difference to {first}", caption, figure)


def _by_rate(group: Group, first: str, label: str) -> Line:
    curves = group.main.curves
    if first not in curves or label not in curves:
        return []
    rates = sorted(set(curves[first].rates) & set(curves[label].rates))
    found = [(rate, more(curves[label].at(rate, tps), curves[first].at(rate, tps))) for rate in rates]
    return [(rate, difference) for rate, difference in found if difference.n]


def _by_tier(group: Group, first: str, label: str) -> Line:
    cases = [
        case for case in group.cases if case.ratio >= 0 and {first, label} <= case.curves.keys()
    ]  # a replay's is nan
    found = [(case.ratio, margin(case.curves[label], case.curves[first])) for case in cases]
    return [(ratio, difference) for ratio, difference in found if difference.n]


def _panel(ax: Axes, lines: Mapping[str, Line], style: Mapping[str, Look]) -> None:
    places = sorted({x for line in lines.values() for x, _ in line})
    span = places[-1] - places[0]
    for number, (label, line) in enumerate(lines.items()):
        aside = (number - (len(lines) - 1) / 2) * span * 0.012  # bars of one place stand side by side
        curve(ax, ((x + aside, difference) for x, difference in line), style[label], label)
    ax.axhline(0, color="#777777", linewidth=0.8)
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    ticks(ax, places)
