"""The figures of the document: `loadgen.report` draws them, from groups made here. Of files, it reads only rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib import rc_context

from loadgen.paper import grid
from loadgen.paper.evidence import Arena, Evidence, goal
from loadgen.paper.settings import LATENCY_FACTOR, NAMES, Setting
from loadgen.report.figures import (
    Kind,
    heatmap,
    imbalance,
    latency,
    provisioning,
    reuse,
    save,
    sensitivity,
    stickiness,
    tps_rate,
)
from loadgen.report.figures.style import RC, Drawn
from loadgen.report.material import Group, Point
from loadgen.report.reading import read
from loadgen.simulation.sweeps.sweep import key, label

SWEPT: tuple[Kind, ...] = (tps_rate, provisioning, reuse)
AT_ONE_RATE: tuple[Kind, ...] = (heatmap, imbalance, latency, stickiness)


@dataclass(frozen=True)
class Placed:
    """A figure and where it is, relative to the document."""

    part: str  # of the document: a setting's name, "guards" or "plateaus"
    drawn: Drawn
    path: Path


def draw(evidence: Evidence, rows: Path, document: Path) -> Iterator[Placed]:
    """Draw and save all figures in `figures` beside the document; each as it is done. Raises OSError."""
    directory = document.parent / "figures"
    directory.mkdir(parents=True, exist_ok=True)
    for part, kinds, group in _groups(evidence, rows):
        if not group.points:
            continue
        for kind in kinds:
            with rc_context(RC):
                found = list(kind.draw(group))
            for drawn in found:
                shown = _prompts(drawn) if part == "disaggregated" and kind in (tps_rate, provisioning) else drawn
                paths = save(shown, directory / f"{part}-{drawn.name}")
                yield Placed(part, shown, next(p for p in paths if p.suffix == ".png").relative_to(document.parent))


def _groups(evidence: Evidence, rows: Path) -> Iterator[tuple[str, tuple[Kind, ...], Group]]:
    for setting in evidence.plan.settings:
        arenas = [evidence.arena(setting.name, ratio) for ratio in setting.ratios]
        rivals = [point for arena in arenas for point in _points(arena)]
        yield setting.name, SWEPT, Group(_title(setting), rivals)
        points = [_with_rows(point, evidence, setting, rows) for point in _at(evidence.arena(setting.name))]
        yield setting.name, AT_ONE_RATE, Group(_title(setting), points)
        if setting.name == "colocated":
            yield "guards", (latency, imbalance), Group(_title(setting), _at(evidence.guards()))
            yield "plateaus", (sensitivity,), Group(_title(setting), list(_sensitivity(evidence, setting)))


def _points(arena: Arena) -> Iterator[Point]:
    """A label is the policy's name: its options differ between provisionings."""
    setting = arena.setting
    for policy, curve in arena.curves.items():
        for factor in curve.rates:
            for seed, measures in curve.points[factor].items():
                yield Point(
                    setting=_title(setting),
                    label=NAMES[policy],
                    policy=policy,
                    options={},
                    ratio=arena.ratio,
                    rate=setting.unit * factor,
                    seed=seed,
                    measures=replace(measures, tps_slo=goal(setting)(measures)),
                )


def _at(arena: Arena) -> list[Point]:
    rate = arena.setting.unit * LATENCY_FACTOR
    return [point for point in _points(arena) if point.rate == rate]


def _with_rows(point: Point, evidence: Evidence, setting: Setting, rows: Path) -> Point:
    if point.seed != evidence.plan.seeds[0]:
        return point
    options = dict(grid.contenders(setting, setting.full, evidence.chosen))[point.policy]
    scenario = setting.scenario(setting.full, LATENCY_FACTOR, point.seed, point.policy, options)
    directory = rows / key(grid.timed(evidence.plan, scenario))
    if not directory.exists():
        return point
    (group,) = read([directory]).groups
    return replace(point, trail=group.points[0].trail)


def _sensitivity(evidence: Evidence, setting: Setting) -> Iterator[Point]:
    for options in ({}, *grid.sensitivities()):
        for seed in evidence.plan.seeds:
            scenario = setting.scenario(setting.full, LATENCY_FACTOR, seed, "smetric", options)
            scenario = grid.timed(evidence.plan, scenario)
            measures = evidence.measured(scenario)
            if measures is not None:
                yield Point(
                    setting=_title(setting),
                    label=label(scenario),
                    policy="smetric",
                    options=options,
                    ratio=setting.full,
                    rate=scenario.rate,
                    seed=seed,
                    measures=measures,
                )


def _title(setting: Setting) -> tuple[tuple[str, str], ...]:
    return (("kind", "simulate"), ("workload", setting.title))


def _prompts(drawn: Drawn) -> Drawn:
    """A figure of TPS where only prefill is measured: the axis and the words name prompt tokens."""
    for axes in drawn.figure.axes:
        axes.set_ylabel(axes.get_ylabel().replace("Output", "Prompt"))
    return replace(drawn, caption=drawn.caption.replace("Output tokens", "Prompt tokens"))
