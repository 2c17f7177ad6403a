"""Stored results as the paper's questions need them: by setting, provisioning, rate and policy. Judges nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from extproc.routing.policies import registry
from loadgen.paper import grid
from loadgen.paper.settings import LATENCY_FACTOR, Plan, Setting
from loadgen.results.intervals import Interval, mean_ci
from loadgen.results.measures import Measures, load_measures
from loadgen.simulation.scenario import Layout, Scenario
from loadgen.simulation.sweeps.peaks import Curve, Value, more
from loadgen.simulation.sweeps.sweep import Result, key


def output(measures: Measures) -> float:
    """TPS within SLO of a colocated cluster: output tokens a second of the requests that met the service level."""
    return measures.tps_slo


def prefill(measures: Measures) -> float:
    """TPS within SLO of a prefill cluster: prompt tokens a second of the requests that met the service level."""
    return measures.tps_slo_all - measures.tps_slo


def goal(setting: Setting) -> Value:
    """What policies are ranked by on a cluster."""
    return prefill if setting.base.layout is Layout.DISAGGREGATED else output


@dataclass(frozen=True)
class Arena:
    """One provisioning of one setting: a curve a policy, rates as factors."""

    setting: Setting
    ratio: float
    curves: Mapping[str, Curve]  # by policy, SMetric first

    @property
    def goal(self) -> Value:
        """What policies are ranked by here."""
        return goal(self.setting)

    @cached_property
    def baselines(self) -> list[str]:
        """The paper's rivals that have results."""
        return [policy for policy in self.curves if policy in self.setting.baselines]

    def peak(self, policy: str) -> float:
        """The factor at which a policy does most."""
        return self.curves[policy].peak(self.goal)

    def best(self, policies: Sequence[str] | None = None) -> str:
        """The policy with the highest peak, of the baselines unless others are given."""
        given = self.baselines if policies is None else policies
        return max(given, key=lambda policy: self.curves[policy].mean(self.peak(policy), self.goal).mean)

    def margin(self, policy: str, rival: str) -> Interval:
        """How much more a policy does at its peak than a rival at the rival's, over paired seeds."""
        a, b = self.curves[policy], self.curves[rival]
        return more(a.at(self.peak(policy), self.goal), b.at(self.peak(rival), self.goal))

    def margin_at(self, factor: float, policy: str, rival: str, value: Value | None = None) -> Interval:
        """The same of any measure at one rate: the same requests under both."""
        value = value or self.goal
        return more(self.curves[policy].at(factor, value), self.curves[rival].at(factor, value))

    def at(self, factor: float, policy: str, value: Value) -> Interval:
        """A measure over the seeds."""
        return self.curves[policy].mean(factor, value)

    def order(self, factor: float, value: Value, policies: Iterable[str]) -> list[str]:
        """Policies by the mean of a measure, ascending."""
        return sorted(policies, key=lambda policy: self.at(factor, policy, value).mean)


@dataclass(frozen=True)
class Evidence:
    """All results of a plan."""

    plan: Plan
    results: Mapping[str, Result]
    chosen: grid.Chosen = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan, results: Iterable[Result]) -> Evidence:
        """Sort results, and find how baselines were tuned."""
        by_key = {result.key: result for result in results if result.measures is not None}
        return cls(plan, by_key, grid.tuned(plan, by_key))

    def arena(self, name: str, ratio: float | None = None) -> Arena:
        """A setting at one provisioning, full unless another is given; without curves while a policy has no result."""
        setting = self.plan.setting(name)
        ratio = setting.full if ratio is None else ratio
        curves = {}
        for policy, options in grid.contenders(setting, ratio, self.chosen):
            points = {
                factor: self._seeds(
                    self._timed(setting.scenario(ratio, factor, 0, policy, options)), self.plan.seeds_of(setting)
                )
                for factor in setting.factors[ratio]
            }
            points = {factor: seeds for factor, seeds in points.items() if seeds}
            if not points:
                return Arena(setting, ratio, {})
            curves[policy] = Curve(policy, points)
        return Arena(setting, ratio, curves)

    def guards(self) -> Arena:
        """SMetric with and without its guards, fully provisioned."""
        setting = self.plan.setting("colocated")
        curves = {}
        for policy in ("smetric", "smetric-basic"):
            points = {
                factor: self._seeds(self._timed(setting.scenario(setting.full, factor, 0, policy, {})), self.plan.seeds)
                for factor in grid.guarded(setting)
            }
            points = {factor: seeds for factor, seeds in points.items() if seeds}
            if not points:
                return Arena(setting, setting.full, {})
            curves[policy] = Curve(policy, points)
        return Arena(setting, setting.full, curves)

    def start(self) -> Mapping[str, Mapping[int, Measures]]:
        """Of the first minutes, by policy and seed."""
        setting = self.plan.setting("colocated")
        return {
            policy: self._seeds(grid.start(self.plan, setting, 0, policy, options), self.plan.seeds)
            for policy, options in grid.contenders(setting, setting.full, self.chosen)
        }

    def sensitivity(self, option: str) -> Mapping[float, Mapping[int, Measures]]:
        """SMetric by an option's value, and seed."""
        setting = self.plan.setting("colocated")
        default = registry.options("smetric")[option]
        choices = [{}, *(options for options in grid.sensitivities() if option in options)]
        found = {
            options.get(option, default): self._seeds(
                self._timed(setting.scenario(setting.full, LATENCY_FACTOR, 0, "smetric", options)), self.plan.seeds
            )
            for options in choices
        }
        return dict(sorted(found.items()))

    def missing(self) -> int:
        """Simulations of the plan that have no result."""
        wanted = [*grid.tuning(self.plan), *grid.judged(self.plan, self.chosen)]
        return sum(key(scenario) not in self.results for scenario in wanted)

    def seconds(self) -> float:
        """Core seconds that the plan's simulations took."""
        wanted = {key(s) for s in [*grid.tuning(self.plan), *grid.judged(self.plan, self.chosen)]}
        return sum(result.wall_s for name, result in self.results.items() if name in wanted)

    def measured(self, scenario: Scenario) -> Measures | None:
        """One simulation's measures, if there are any."""
        result = self.results.get(key(scenario))
        return None if result is None or result.measures is None else load_measures(result.measures)

    def _timed(self, scenario: Scenario) -> Scenario:
        return grid.timed(self.plan, scenario)

    def _seeds(self, scenario: Scenario, seeds: Iterable[int]) -> dict[int, Measures]:
        found = {seed: self.measured(replace(scenario, seed=seed)) for seed in seeds}
        return {seed: measures for seed, measures in found.items() if measures is not None}


def over_seeds(measures: Mapping[int, Measures], value: Value) -> Interval:
    """A measure's mean and interval."""
    return mean_ci(value(found) for found in measures.values())
