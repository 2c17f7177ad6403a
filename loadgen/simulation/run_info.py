"""What a simulated run says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields

from extproc.routing.policies import registry
from loadgen.results.records import Row, RunInfo
from loadgen.simulation.cluster import names_of
from loadgen.simulation.scenario import Scenario
from loadgen.simulation.workload import LeftOut

OFF = 0.1  # an arriving rate that differs from the offered one by more is said: figures are of another load
_ELSEWHERE = {"policy", "options", "workload", "rate", "seed", "instances", "slo"}  # fields of RunInfo, or spelled out


def label(scenario: Scenario) -> str:
    """The policy, with those of its options that are not the defaults: "bailian weight=0.8".

    Of a policy that there is no longer, as an old sweep may have it, all options that were given.
    """
    defaults = registry.options(scenario.policy) if scenario.policy in registry.names() else {}
    chosen = [f"{name}={value:g}" for name, value in sorted(scenario.options.items()) if defaults.get(name) != value]
    return " ".join([scenario.policy, *chosen])


def info(scenario: Scenario, rows: Sequence[Row] = (), left_out: LeftOut | None = None) -> RunInfo:
    """`run.json` of a simulation. `rows` tell how many requests there were, `left_out` how many there were not."""
    start, end = scenario.warmup_s, scenario.warmup_s + scenario.measure_s
    due = sum(start <= row.due_s < end for row in rows)
    settings = {field.name: getattr(scenario, field.name) for field in fields(scenario) if field.name not in _ELSEWHERE}
    return RunInfo(
        kind="simulate",
        label=label(scenario),
        policy=scenario.policy,
        options=scenario.options,
        workload=scenario.workload,
        rate=scenario.rate,
        seed=scenario.seed,
        instances=names_of(scenario),
        window=(start, end),
        settings=settings
        | {f"slo_{name}": value for name, value in asdict(scenario.slo).items()}
        | {"requests": len(rows), "arriving_per_s": due / scenario.measure_s if scenario.measure_s else 0.0}
        | {f"left_out_{name}": share for name, share in asdict(left_out or LeftOut()).items()},
    )


def off(offered: float, arriving: float) -> float:
    """By how much requests arrive more often than was offered, as a share; 0 where that is within OFF of it."""
    share = arriving / offered - 1 if offered > 0 else 0.0
    return share if abs(share) > OFF else 0.0


def idle(scenario: Scenario) -> str:
    """Why a run without a request in its window has nothing to say, and what to do."""
    return (
        f"no request is due in the {scenario.measure_s:g} s that are measured, at {scenario.rate:g} requests a second: "
        "measure for longer, or at a higher rate"
    )
