"""What a policy's option changes: TPS within SLO and reuse against its value, everything else at its default."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from extproc.routing.policies import registry
from loadgen.report.figures.style import GLOBAL, LOCAL, Drawn, Look, curve, panels, provision, rate_words
from loadgen.report.material import Group, Point, tps
from loadgen.results.intervals import mean_ci
from loadgen.results.measures import Measures
from loadgen.simulation.sweeps.peaks import Value

NEEDS = "sensitivity: simulations of a policy with at least two values of an option (sweep --policy smetric:overload=1)"
_INFINITE = 1e6  # an option from here on is shown as infinite: JSON has no infinity


def draw(group: Group) -> Iterator[Drawn]:
    """Two panels an option that was varied."""
    for policy in sorted(set(group.policies.values()) & set(registry.names())):
        for option, default in registry.options(policy).items():
            points = [p for p in group.points if p.policy == policy and _else_default(p, option)]
            by_place: dict[tuple[str, float], dict[float, list[Measures]]] = defaultdict(lambda: defaultdict(list))
            ratios = {str(point.ratio): point.ratio for point in points}
            for point in points:
                place = by_place[str(point.ratio), point.rate]
                place[point.options.get(option, default)].append(point.measures)
            if not by_place:
                continue
            (ratio, rate), values = max(by_place.items(), key=lambda item: (len(item[1]), _worth(item[1])))
            if len(values) > 1:
                yield _figure(group, policy, option, default, dict(sorted(values.items())), ratios[ratio], rate)


def _figure(
    group: Group,
    policy: str,
    option: str,
    default: float,
    values: Mapping[float, list[Measures]],
    ratio: float,
    rate: float,
) -> Drawn:
    figure, (left, right) = panels(2, width=3.4, share=False)
    places = range(len(values))
    _curve(left, values, tps, "#D55E00", "o", "TPS")
    left.set_ylim(bottom=0)
    left.set_ylabel("Output tokens/s within SLO")
    _curve(right, values, lambda measures: measures.reuse, GLOBAL, "s", "local and global")
    _curve(right, values, lambda measures: measures.local, LOCAL, "^", "local")
    right.set_ylim(0, 1)
    right.yaxis.set_major_formatter(PercentFormatter(1))
    right.set_ylabel("Prompt tokens reused")
    right.legend(loc="lower right")
    names = ["∞" if value >= _INFINITE else f"{value:g}" for value in values]
    for ax in (left, right):
        ax.set_xticks(list(places), names)
        ax.set_xlabel(option.upper())
        if default in values:
            ax.axvline(list(values).index(default), color="#999999", linewidth=0.8, linestyle=":")
    tier = provision(ratio)
    count = len(next(iter(values.values())))
    caption = f"{policy} at {rate_words(group, rate)}{', ' if tier else ''}{tier}; dotted: the default. {count} seeds."
    name = f"sensitivity-{policy}-{option.replace('_', '-')}"
    return Drawn(name, f"Sensitivity of {policy} to {option.upper()}", caption, figure)


def _curve(ax: Axes, values: Mapping[float, list[Measures]], value: Value, color: str, marker: str, label: str) -> None:
    means = (mean_ci(map(value, measures)) for measures in values.values())
    curve(ax, enumerate(means), Look(color, marker, "-"), label)


def _else_default(point: Point, option: str) -> bool:
    defaults = registry.options(point.policy)
    return all(defaults.get(name) == value for name, value in point.options.items() if name != option)


def _worth(values: Mapping[float, list[Measures]]) -> float:
    return math.fsum(mean_ci(map(tps, measures)).mean for measures in values.values()) / len(values)
