"""How all figures look: colours that the colour-blind tell apart, one for each policy; sizes, error bars, legends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadgen.report.material import Case, Group
from loadgen.results.intervals import Interval

RC: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "savefig.bbox": "tight",
    "savefig.dpi": 150,
    "svg.hashsalt": "loadgen",  # the same ids in every run
}
LOCAL, GLOBAL = "#0072B2", "#A6CEE3"  # the tiers
PANELS = 4  # beside each other, at most

# Okabe and Ito's colours for eyes of all kinds, and a marker for print in grey.
_POLICIES = {
    "smetric": ("#D55E00", "o"),
    "smetric-basic": ("#E69F00", "s"),
    "bailian": ("#0072B2", "^"),
    "lmetric": ("#009E73", "D"),
    "least-loaded": ("#56B4E9", "v"),
    "dynamo": ("#CC79A7", "P"),
    "sticky-until-saturated": ("#000000", "X"),
    "round-robin": ("#8C8C8C", "<"),
    "random": ("#8C8C8C", ">"),
}
_OTHERS = (("#7A3B9D", "h"), ("#7F5F00", "p"), ("#A50F38", "*"), ("#3D5A5A", "d"))  # policies that come later, peers
_BAR: dict[str, Any] = {"elinewidth": 0.9, "capsize": 2}  # an error bar
_LINES = ("-", "--", ":", "-.", (0, (3, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 3)), (0, (5, 5)))  # a policy's labels


@dataclass(frozen=True)
class Drawn:
    """A figure with its words. `name` is its file's, without ending."""

    name: str
    title: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class Look:
    """A curve's colour, marker and line."""

    color: str
    marker: str
    line: Any


def looks(group: Group) -> Mapping[str, Look]:
    """By label: a policy's colour and marker are the same in all figures; its options differ in the line."""
    strangers = sorted({policy for policy in group.policies.values() if policy not in _POLICIES})
    others = {policy: _OTHERS[number % len(_OTHERS)] for number, policy in enumerate(strangers)}
    found, seen = {}, dict.fromkeys(group.policies.values(), 0)
    for label, policy in group.policies.items():
        if label in group.shown:
            found[label] = Look(*(_POLICIES.get(policy) or others[policy]), _LINES[seen[policy] % len(_LINES)])
            seen[policy] += 1
    return found


def panels(number: int, *, width: float = 3.2, height: float = 2.6, share: bool = True) -> tuple[Figure, list[Axes]]:
    """A row of panels, sizes in inches each; with `share` they have one y axis."""
    figure = Figure(figsize=(max(width * number, 4.4), height))
    return figure, list(figure.subplots(1, number, sharey=share, squeeze=False)[0])


def spread(cases: Sequence[Case], most: int = PANELS) -> list[Case]:
    """As many cases as there is room for, the first and the last among them."""
    if len(cases) <= most:
        return list(cases)
    return [cases[round(number * (len(cases) - 1) / (most - 1))] for number in range(most)]


def provision(ratio: float) -> str:
    """A case's title."""
    if math.isnan(ratio):
        return ""
    return "no global tier" if ratio == 0 else f"global tier {ratio:g}x local"


def where(group: Group, case: Case) -> str:
    """At which rate and provisioning a figure of one case is, for its caption."""
    tier = provision(case.ratio)
    return f"at {rate_words(group, case.rate)}" + (f", {tier}" if tier else "")


def rate_words(group: Group, rate: float) -> str:
    """A rate with its unit; a replay's may be the factor of a recorded trace."""
    return f"rate {rate:g}" if group.live else f"{rate:g} request{'' if rate == 1 else 's'}/s"


def rate_axis(group: Group) -> str:
    """The label of an axis of rates."""
    return "Offered rate (requests/s, or factor of the trace)" if group.live else "Offered rate (requests/s)"


def error(intervals: Iterable[Interval]) -> list[float]:
    """Lengths of error bars; none where a single seed tells of no spread."""
    return [0.0 if math.isnan(interval.half) else interval.half for interval in intervals]


def curve(ax: Axes, points: Iterable[tuple[float, Interval]], look: Look, label: str) -> None:
    """A line through values with their error bars."""
    known = list(points)
    ax.errorbar(
        [x for x, _ in known],
        [value.mean for _, value in known],
        yerr=error(value for _, value in known),
        color=look.color,
        marker=look.marker,
        linestyle=look.line,
        label=label,
        **_BAR,
    )


def dot(ax: Axes, row: float, value: Interval, look: Look, *, face: str | None = None, bounded: bool = False) -> None:
    """One value in its row of a horizontal figure; `bounded` for shares, whose bars stay between 0 and 1."""
    half = error([value])[0]
    bar: Any = [[min(half, value.mean)], [min(half, 1 - value.mean)]] if bounded else [half]
    marker: dict[str, Any] = {"marker": look.marker, "markerfacecolor": face or look.color}
    ax.errorbar(value.mean, row, xerr=bar, color=look.color, linestyle="", **marker, **_BAR)


def seeds(case: Case) -> str:
    """What the error bars are, for a caption."""
    counts = {len(values) for curve in case.curves.values() for values in curve.points.values()}
    number = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{max(counts)}"
    return "one seed" if counts == {1} else f"mean of {number} seeds, bars are 95 % confidence intervals"


def ticks(ax: Axes, values: Sequence[float]) -> None:
    """Ticks of the x axis where something was measured, if there is room for all."""
    if len(values) <= 8:
        ax.set_xticks(list(values), [f"{value:g}" for value in values])


def legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for all panels, below them, where it covers nothing."""
    handles: dict[str, Artist] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    inches = 0.5 + 0.07 * max(map(len, handles))
    columns = max(1, min(len(handles), int(figure.get_figwidth() // inches)))
    figure.set_figheight(figure.get_figheight() + 0.2 * math.ceil(len(handles) / columns))
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=columns)


def rows_of(ax: Axes, labels: Sequence[str]) -> None:
    """A horizontal figure with a row for each label, the first on top."""
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.4, -0.6)
    plain_rows(ax)


def plain_rows(ax: Axes) -> None:
    """No ticks and lines across for an axis of names."""
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False, axis="y")
