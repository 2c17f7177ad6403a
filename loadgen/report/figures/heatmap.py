"""Tokens a minute of each instance over time: where load gathers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from loadgen.report.figures.style import Drawn, where
from loadgen.report.material import Group
from loadgen.results.measures import imbalances

NEEDS = "load heatmap: runs with rows over at least two minutes (simulate, replay)"
_COLUMNS = 3


def draw(group: Group) -> Iterator[Drawn]:
    """A panel a policy, all with the same colours; of several seeds the first."""
    heats = {label: trails[0] for label, trails in group.trails().items() if len(trails[0].heat) > 1}
    heats = {label: trail for label, trail in heats.items() if any(map(sum, trail.heat))}
    if not heats:
        return
    columns = 2 if len(heats) == 4 else min(_COLUMNS, len(heats))
    lines = math.ceil(len(heats) / columns)
    figure = Figure(figsize=(3.0 * columns + 0.9, 2.5 * lines + 0.5))
    axes = list(figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flat)
    top = max(cell for trail in heats.values() for minute in trail.heat for cell in minute) / 1e3
    mesh = None
    for ax, (label, trail) in zip(axes, heats.items(), strict=False):
        table = [[minute[column] / 1e3 for minute in trail.heat] for column in range(len(trail.instances))]
        minutes = range(len(trail.heat) + 1)
        edges = [number - 0.5 for number in range(len(trail.instances) + 1)]  # an instance's number at its middle
        mesh = ax.pcolormesh(minutes, edges, table, cmap="cividis_r", vmin=0, vmax=top)
        uneven = imbalances(trail.heat)
        ax.set_title(f"{label}\nhottest / mean {math.fsum(uneven) / len(uneven):.2f}", fontsize=9)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
        ax.grid(visible=False)
    for ax in axes[max(0, len(heats) - columns) : len(heats)]:  # nothing is below these
        ax.tick_params(labelbottom=True)
    for ax in axes[len(heats) :]:
        ax.set_axis_off()
    figure.supxlabel("Minute of the window", fontsize=9)
    figure.supylabel("Instance", fontsize=9)
    if mesh is not None:
        figure.colorbar(mesh, ax=axes, label="Thousand tokens a minute", shrink=0.9, pad=0.01)
    caption = f"Prompt and output tokens, {where(group, group.main)}, first seed. Dark cells are hot."
    yield Drawn("heatmap", "Load of each instance over time", caption, figure)
