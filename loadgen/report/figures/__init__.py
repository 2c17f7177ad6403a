"""The figures of the paper, a module a kind; each draws a group of comparable results, or nothing if they do not do.

A module has NEEDS (what must be given for it; empty where it is not missed) and `draw(group)`, an iterator of `Drawn`.
A new kind is a new file and an entry in KINDS.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from matplotlib import rc_context

from loadgen.report.figures import (
    heatmap,
    imbalance,
    latency,
    margin,
    provisioning,
    reuse,
    sensitivity,
    stickiness,
    tps,
    tps_rate,
)
from loadgen.report.figures.style import RC, Drawn
from loadgen.report.material import Group


class Kind(Protocol):
    """What a module of a kind of figure offers."""

    NEEDS: str

    def draw(self, group: Group) -> Iterator[Drawn]:
        """The figures; none where the group lacks what is needed."""


KINDS: tuple[Kind, ...] = (
    tps,
    tps_rate,
    provisioning,
    margin,
    reuse,
    imbalance,
    heatmap,
    latency,
    stickiness,
    sensitivity,
)


def draw(group: Group) -> tuple[list[Drawn], list[str]]:
    """All figures of a group, and what would be needed for those that it cannot have."""
    drawn, needs = [], []
    with rc_context(RC):
        for kind in KINDS:
            found = list(kind.draw(group))
            drawn += found
            needs += [kind.NEEDS] if kind.NEEDS and not found else []
    return drawn, needs


def save(drawn: Drawn, path: Path) -> list[Path]:
    """Write PNG and SVG beside each other, the same bytes for the same figure; the paths. Raises OSError."""
    paths = [path.with_name(f"{path.name}.{kind}") for kind in ("svg", "png")]
    with rc_context(RC):
        for file in paths:
            drawn.figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else {})
    return paths
