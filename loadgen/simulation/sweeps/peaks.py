"""What a sweep says: each policy's best over the offered rates, and how it compares on the same seeds. Pure.

A policy's peak is the rate with the highest mean over seeds; its values are those of the seeds at that rate, so seeds
pair with another policy's at its own peak. Failed simulations are left out of the means and counted by who shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property

from loadgen.results.intervals import Interval, mean_ci, paired
from loadgen.results.measures import Measures, load_measures
from loadgen.simulation.sweeps.sweep import Result, label

Value = Callable[[Measures], float]
Setting = tuple[tuple[str, str], ...]  # what varies in a sweep beside policy, rate and seed: (field, value)
_NO_SETTING = frozenset({"policy", "options", "rate", "seed"})


@dataclass(frozen=True)
class Curve:
    """One policy in one setting: measures by rate and seed."""

    label: str
    points: Mapping[float, Mapping[int, Measures]]

    def at(self, rate: float, value: Value) -> Mapping[int, float]:
        """A measure by seed; empty for a rate without results."""
        return {seed: value(measures) for seed, measures in sorted(self.points.get(rate, {}).items())}

    def mean(self, rate: float, value: Value) -> Interval:
        """A measure over the seeds."""
        return mean_ci(self.at(rate, value).values())

    @cached_property
    def rates(self) -> tuple[float, ...]:
        """Offered rates, ascending."""
        return tuple(sorted(self.points))

    def peak(self, value: Value) -> float:
        """The rate at which the mean is highest; the lower of equals. Raises ValueError where there are no points."""
        return max(self.rates, key=lambda rate: self.mean(rate, value).mean)


def curves(results: Iterable[Result]) -> dict[str, Curve]:
    """Results of one setting, a curve a policy, in the order of their first results."""
    found: dict[str, dict[float, dict[int, Measures]]] = {}
    for result in results:
        if result.measures is not None:
            rates = found.setdefault(label(result.scenario), {})
            seeds = rates.setdefault(result.scenario.rate, {})
            seeds[result.scenario.seed] = load_measures(result.measures)
    return {name: Curve(name, points) for name, points in found.items()}


def more(a: Mapping[int, float], b: Mapping[int, float]) -> Interval:
    """How much more `a` is than `b`, relative to `b`, over the seeds that both have."""
    seeds = sorted(a.keys() & b.keys())
    return paired([a[seed] for seed in seeds], [b[seed] for seed in seeds])


def settings(results: Iterable[Result]) -> dict[Setting, list[Result]]:
    """Results by setting; a setting names only fields that are not the same in all of them."""
    results = list(results)
    varying = [
        field.name
        for result in results[:1]
        for field in fields(result.scenario)
        if field.name not in _NO_SETTING
        and any(getattr(other.scenario, field.name) != getattr(result.scenario, field.name) for other in results)
    ]
    found: dict[Setting, list[Result]] = {}
    for result in results:
        setting = tuple((name, str(getattr(result.scenario, name))) for name in varying)
        found.setdefault(setting, []).append(result)
    return found
