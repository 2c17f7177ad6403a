"""What a report is made from, brought into groups that may be compared. Reads no files (`reading` does), draws nothing.

A group is one setting: workload, machine, service level and whatever else was chosen beside policy, rate, provisioning
and seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from loadgen.results.intervals import Interval, mean_ci
from loadgen.results.measures import Measures
from loadgen.simulation.sweeps.peaks import Curve, more

MOST = 8  # curves that a figure can bear


@dataclass(frozen=True)
class Trail:
    """What figures need of a run's rows."""

    instances: Sequence[str]
    heat: Sequence[Sequence[float]]  # tokens, a row a minute, a column an instance
    windows: Sequence[float]  # hottest / mean of each half minute
    ttft: Sequence[float]  # seconds, of all requests due in the window
    tpot: Sequence[float]


@dataclass(frozen=True)
class Point:
    """One run or simulation, measured."""

    setting: tuple[tuple[str, str], ...]
    label: str
    policy: str
    options: Mapping[str, float]
    ratio: float  # global tier / local cache in tokens; nan where it is not known
    rate: float
    seed: int
    measures: Measures
    trail: Trail | None = None  # only where there were rows


@dataclass(frozen=True)
class Case:
    """One provisioning of a group: a curve a policy."""

    ratio: float
    curves: Mapping[str, Curve]

    @cached_property
    def rate(self) -> float:
        """The rate at which policies are compared: of those that most have in common, the best for them on average."""
        rates = sorted({rate for curve in self.curves.values() for rate in curve.rates})

        def worth(rate: float) -> tuple[int, float]:
            means = [curve.mean(rate, tps).mean for curve in self.curves.values() if rate in curve.points]
            return len(means), math.fsum(means) / len(means)

        return max(rates, key=worth)


@dataclass(frozen=True)
class Group:
    """One setting: what may stand in one figure."""

    setting: tuple[tuple[str, str], ...]
    points: Sequence[Point]

    @property
    def title(self) -> str:
        """The setting in words."""
        given = dict(self.setting)
        kind, workload = given.pop("kind", ""), given.pop("workload", "")
        instances = given.pop("instances", "")
        words = [
            f"replay of {workload}" if kind == "replay" else workload,
            f"{instances} instances" if instances else "",
            given.pop("model", ""),
        ]
        return ", ".join([word for word in words if word] + [f"{name} {value}" for name, value in given.items()])

    @property
    def live(self) -> bool:
        """Whether these are replays against engines."""
        return ("kind", "replay") in self.setting

    @cached_property
    def policies(self) -> Mapping[str, str]:
        """The policy of each label, in the order of figures: ours first, then alphabetical."""
        found = {point.label: point.policy for point in self.points}
        return dict(sorted(found.items(), key=lambda item: (not item[1].startswith("smetric"), item[1], item[0])))

    @cached_property
    def cases(self) -> Sequence[Case]:
        """By provisioning, ascending; an unknown one last. A figure's worth of curves each: `shown`."""
        return [
            Case(case.ratio, {label: curve for label, curve in case.curves.items() if label in self.shown})
            for case in self.all_cases
        ]

    @cached_property
    def all_cases(self) -> Sequence[Case]:
        """`cases` with all their curves."""
        found: dict[float, dict[str, dict[float, dict[int, Measures]]]] = {}
        ratios = {str(point.ratio): point.ratio for point in self.points}  # nan is not equal to itself
        for point in self.points:
            rates = found.setdefault(ratios[str(point.ratio)], {}).setdefault(point.label, {})
            rates.setdefault(point.rate, {})[point.seed] = point.measures
        return [
            Case(ratio, {label: Curve(label, curves[label]) for label in self.policies if label in curves})
            for ratio, curves in sorted(found.items(), key=lambda item: (math.isnan(item[0]), item[0]))
        ]

    @cached_property
    def shown(self) -> frozenset[str]:
        """The labels that curves show: those that were tried in as many places as any of their policy, so that single
        points of an option stay out; and of these each policy's with the highest peak where there are too many."""
        places = {label: {(str(p.ratio), p.rate) for p in self.points if p.label == label} for label in self.policies}
        most = dict.fromkeys(self.policies.values(), 0)
        for label, policy in self.policies.items():
            most[policy] = max(most[policy], len(places[label]))
        tried = {label for label, policy in self.policies.items() if len(places[label]) == most[policy]}
        if len(tried) <= MOST:
            return frozenset(tried)
        best: dict[str, tuple[float, str]] = {}
        for case in self.all_cases:
            for label in tried & case.curves.keys():
                curve = case.curves[label]
                peak = curve.mean(curve.peak(tps), tps).mean
                best[self.policies[label]] = max((peak, label), best.get(self.policies[label], (-1.0, "")))
        return frozenset(label for _, label in best.values())

    @property
    def main(self) -> Case:
        """The case for figures of one: the most curves, and of those the largest global tier."""
        return max(self.cases, key=lambda case: (len(case.curves), -1.0 if math.isnan(case.ratio) else case.ratio))

    def trails(self) -> Mapping[str, Sequence[Trail]]:
        """Of the main case at its rate, by label and in the order of seeds: what rows were read."""
        case = self.main
        found: dict[str, list[Trail]] = {}
        for label in case.curves:
            for point in sorted(self.points, key=lambda point: point.seed):
                here = str(point.ratio) == str(case.ratio) and point.rate == case.rate and point.label == label
                if here and point.trail is not None:
                    found.setdefault(label, []).append(point.trail)
        return found


@dataclass(frozen=True)
class Material:
    """Everything that was read, and what the reader has to know about it."""

    groups: Sequence[Group]
    notes: Sequence[str] = field(default_factory=tuple)


def margin(curve: Curve, base: Curve) -> Interval:
    """How much more one does than the other, each at its best of the rates that both have, over the same seeds."""
    rates = [rate for rate in curve.rates if rate in base.points]
    if not rates:
        return mean_ci([])
    at, base_at = (max(rates, key=lambda rate: one.mean(rate, tps).mean) for one in (curve, base))
    return more(curve.at(at, tps), base.at(base_at, tps))


def tps(measures: Measures) -> float:
    """The measure by which policies are ranked."""
    return measures.tps_slo
