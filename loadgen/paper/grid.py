"""Settings -> scenarios. Baselines are tuned first, on seeds of their own; what is judged follows, seed by seed.

Seed by seed, so that an interrupted reproduction has whole tables of fewer seeds. Results are looked up by scenario.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from extproc.routing.policies import registry
from loadgen.paper.settings import CANDIDATES, GUARD_FACTORS, HIT_RATIOS, LATENCY_FACTOR, OVERLOADS, Plan, Setting
from loadgen.results.intervals import mean_ci
from loadgen.results.measures import load_measures
from loadgen.simulation.scenario import Layout, Scenario
from loadgen.simulation.sweeps.sweep import Result, key

Options = Mapping[str, float]
Chosen = Mapping[tuple[str, float, str], Options]  # (setting, ratio, policy) -> its options


def tuning(plan: Plan) -> list[Scenario]:
    """Every candidate of every baseline that has several, at one rate a provisioning."""
    return [
        timed(plan, setting.scenario(ratio, setting.tuned_at[ratio], seed, policy, options))
        for setting in plan.settings
        for seed in plan.tuning_seeds_of(setting)
        for ratio in setting.ratios
        for policy in setting.baselines
        for options in candidates(policy)
        if len(candidates(policy)) > 1
    ]


def candidates(policy: str) -> list[Options]:
    """What a baseline is tuned over; the defaults alone where there is nothing to choose."""
    return [dict(options) for options in CANDIDATES.get(policy, ({},))]


def tuned(plan: Plan, results: Mapping[str, Result]) -> dict[tuple[str, float, str], Options]:
    """The options with the most tokens a second within the service level. Results are by key; missing ones lose."""
    return {
        (setting.name, ratio, policy): max(
            candidates(policy), key=lambda options: worth(plan, setting, ratio, policy, options, results)
        )
        for setting in plan.settings
        for ratio in setting.ratios
        for policy in setting.baselines
    }


def worth(
    plan: Plan, setting: Setting, ratio: float, policy: str, options: Options, results: Mapping[str, Result]
) -> float:
    """Mean output of a candidate over the tuning's seeds (prompt tokens where only prefill is measured); -1 of none."""
    values = []
    for seed in plan.tuning_seeds_of(setting):
        scenario = timed(plan, setting.scenario(ratio, setting.tuned_at[ratio], seed, policy, options))
        result = results.get(key(scenario))
        if result is not None and result.measures is not None:
            measures = load_measures(result.measures)
            prefill = setting.base.layout is Layout.DISAGGREGATED
            values.append(measures.tps_slo_all - measures.tps_slo if prefill else measures.tps_slo)
    return mean_ci(values).mean if values else -1.0


def judged(plan: Plan, chosen: Chosen) -> list[Scenario]:
    """Each setting's sweep; of the colocated one also start, guards and sensitivities. Each scenario once."""
    colocated = plan.setting("colocated")
    found = [
        *(scenario for setting in plan.settings for scenario in sweep(plan, setting, chosen)),
        *(
            start(plan, colocated, seed, policy, options)
            for seed in plan.seeds
            for policy, options in contenders(colocated, colocated.full, chosen)
        ),
        *(
            timed(plan, colocated.scenario(colocated.full, factor, seed, "smetric-basic", {}))
            for seed in plan.seeds
            for factor in guarded(colocated)
        ),
        *(
            timed(plan, colocated.scenario(colocated.full, LATENCY_FACTOR, seed, "smetric", options))
            for seed in plan.seeds
            for options in sensitivities()
        ),
    ]
    return sorted({key(scenario): scenario for scenario in found}.values(), key=lambda scenario: scenario.seed)


def sweep(plan: Plan, setting: Setting, chosen: Chosen) -> list[Scenario]:
    """Every contender at every rate and provisioning of a setting."""
    return [
        timed(plan, setting.scenario(ratio, factor, seed, policy, options))
        for ratio in reversed(setting.ratios)
        for factor in setting.factors[ratio]
        for seed in plan.seeds_of(setting)
        for policy, options in contenders(setting, ratio, chosen)
    ]


def shown(plan: Plan, chosen: Chosen) -> list[Scenario]:
    """Those whose rows are kept for figures: one seed, fully provisioned, where the paper shows latencies."""
    return [
        timed(plan, setting.scenario(setting.full, LATENCY_FACTOR, plan.seeds[0], policy, options))
        for setting in plan.settings
        for policy, options in contenders(setting, setting.full, chosen)
    ]


def contenders(setting: Setting, ratio: float, chosen: Chosen) -> Iterator[tuple[str, Options]]:
    """SMetric and the tuned baselines."""
    yield "smetric", {}
    for policy in setting.baselines:
        yield policy, chosen[setting.name, ratio, policy]


def guarded(setting: Setting) -> tuple[float, ...]:
    """The factors at which SMetric is also simulated without its guards."""
    return tuple(factor for factor in setting.factors[setting.full] if factor in GUARD_FACTORS)


def start(plan: Plan, setting: Setting, seed: int, policy: str, options: Options) -> Scenario:
    """The first minutes, from empty caches."""
    scenario = setting.scenario(setting.full, LATENCY_FACTOR, seed, policy, options)
    return replace(scenario, warmup_s=0.0, measure_s=plan.start_s)


def timed(plan: Plan, scenario: Scenario) -> Scenario:
    """With the plan's warm-up and window."""
    return replace(scenario, warmup_s=plan.warmup_s, measure_s=plan.measure_s)


def sensitivities() -> list[Options]:
    """SMetric's options one at a time, the defaults left to the main sweep."""
    defaults = registry.options("smetric")
    values = {"overload": OVERLOADS, "hit_ratio": HIT_RATIOS}
    return [{name: value} for name, grid in values.items() for value in grid if value != defaults[name]]
