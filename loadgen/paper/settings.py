"""What is simulated: three clusters, who competes on each, at which rates, and how long. Data alone.

A rate is a factor times the setting's unit: as in the paper, 1.0 is a load that every policy carries, and the policies
that reuse most saturate near 1.75. The paper does not say what its unit is in requests a second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from loadgen.simulation.scenario import Layout, Scenario

FULL_RATIO = 4.6  # of the paper's machines for the 30B model: global tier / local cache
LATENCY_FACTOR = 1.5  # where the paper shows latencies, guards and sensitivities
GUARD_FACTORS = (LATENCY_FACTOR, 1.75)  # where SMetric is simulated without them
INFINITY = 1e9  # an OVERLOAD that no load exceeds: JSON has no infinity

OVERLOADS = (1.0, 2.0, 3.0, INFINITY)
HIT_RATIOS = (0.0, 0.5, 0.75)

# What each baseline is tuned over. SMetric is not tuned: its guards have the paper's defaults.
CANDIDATES: Mapping[str, tuple[Mapping[str, float], ...]] = {
    "bailian": tuple({"weight": weight} for weight in (0.3, 0.5, 0.7, 0.8, 0.9)),
    "lmetric": ({"idle": 0.0}, {"idle": 1.0}),
}

NAMES = {
    "smetric": "SMetric",
    "smetric-basic": "SMetric (basic)",
    "bailian": "Bailian",
    "lmetric": "LMetric",
    "least-loaded": "load balance only",
    "dynamo": "Dynamo",
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A cluster that policies compete on."""

    name: str
    title: str
    base: Scenario
    unit: float  # requests a second of the whole cluster at factor 1.0
    factors: Mapping[float, tuple[float, ...]]  # global/local ratio -> factors of the sweep
    tuned_at: Mapping[float, float]  # global/local ratio -> the factor at which baselines are tuned
    baselines: tuple[str, ...]
    full: float = FULL_RATIO
    times: int = 1  # as many seeds as the plan's: what has fewer requests has more noise

    @property
    def ratios(self) -> tuple[float, ...]:
        """Provisionings, ascending."""
        return tuple(sorted(self.factors))

    def scenario(self, ratio: float, factor: float, seed: int, policy: str, options: Mapping[str, float]) -> Scenario:
        """One simulation of this setting."""
        rate = round(self.unit * factor, 6)
        return replace(self.base, global_ratio=ratio, rate=rate, seed=seed, policy=policy, options=options)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is simulated."""

    quick: bool
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]  # others, so that no baseline is chosen by what it is judged by
    warmup_s: float
    measure_s: float
    start_s: float  # of the cold start that is looked at
    study_s: float  # of the workload that is studied
    settings: tuple[Setting, ...]

    def seeds_of(self, setting: Setting) -> tuple[int, ...]:
        """Those that a setting is judged on."""
        return _times(self.seeds, setting.times)

    def tuning_seeds_of(self, setting: Setting) -> tuple[int, ...]:
        """Those that its baselines are tuned on."""
        return _times(self.tuning_seeds, setting.times)

    def setting(self, name: str) -> Setting:
        """By name. Raises KeyError."""
        return {setting.name: setting for setting in self.settings}[name]


def _times(seeds: tuple[int, ...], times: int) -> tuple[int, ...]:
    return tuple(seed + len(seeds) * turn for turn in range(times) for seed in seeds)


COLOCATED = Setting(
    name="colocated",
    title="Qwen3-Coder-30B-A3B on 32 instances, colocated",
    base=Scenario(block_size=128),
    unit=4.75,
    factors={
        0.0: (0.75, 1.0, 1.25),
        1.6: (1.5, 1.75),
        FULL_RATIO: (1.0, 1.5, 1.75, 2.0),
    },
    tuned_at={0.0: 1.0, 1.6: 1.5, FULL_RATIO: 1.75},
    baselines=("bailian", "lmetric", "least-loaded"),
)
LARGE = Setting(
    name="large",
    title="Qwen3-235B-A22B-FP8 on 8 instances of four H20, colocated",
    base=Scenario(model="235b-4xh20", instances=8, block_size=128),
    unit=0.8,
    factors={FULL_RATIO: (1.0, 1.5, 1.75, 2.0)},
    tuned_at={FULL_RATIO: 1.75},
    baselines=("bailian", "lmetric", "least-loaded"),
    times=2,
)
DISAGGREGATED = Setting(
    name="disaggregated",
    title="Qwen3-30B-A3B on 32 prefill instances, disaggregated",
    base=Scenario(layout=Layout.DISAGGREGATED, block_size=128),
    unit=6.0,
    factors={1.6: (1.5, 1.75), FULL_RATIO: (1.5, 1.75)},
    tuned_at={1.6: 1.5, FULL_RATIO: 1.75},
    baselines=("bailian", "lmetric", "dynamo"),
)

FULL = Plan(
    quick=False,
    seeds=(0, 1, 2, 3, 4),
    tuning_seeds=(100, 101),
    warmup_s=1800.0,
    measure_s=900.0,
    start_s=600.0,
    study_s=3600.0,
    settings=(COLOCATED, LARGE, DISAGGREGATED),
)


def _thinned(setting: Setting) -> Setting:
    """None and full provisioning, at the rate of the latencies and one beyond; without a store at one rate."""
    kept = {
        ratio: factors[-3:-1] if ratio else (setting.tuned_at[ratio],)
        for ratio, factors in setting.factors.items()
        if ratio in (0.0, setting.full)
    }
    return replace(setting, factors=kept)


QUICK = Plan(
    quick=True,
    seeds=(0, 1),
    tuning_seeds=(100,),
    warmup_s=300.0,
    measure_s=300.0,
    start_s=300.0,
    study_s=600.0,
    settings=tuple(_thinned(setting) for setting in FULL.settings),
)


def number(value: float) -> str:
    """An option's value as a reader expects it."""
    return "∞" if value >= INFINITY or math.isinf(value) else f"{value:g}"
