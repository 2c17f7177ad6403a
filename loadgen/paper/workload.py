"""What the paper says of its traces, beside a study of our generated one: section 3.

Studied at the paper's density, requests a minute and instance, which its testbed did not have: 32 instances of the 30B
model saturate at a fraction of it. The simulations replay the same profile at the rates of their sweeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path

import msgspec

from loadgen import simulation
from loadgen.paper.findings import Finding, Verdict, level, percent, plain, share
from loadgen.paper.settings import Plan
from loadgen.results.intervals import Interval, mean_ci
from loadgen.simulation.scenario import Scenario
from loadgen.simulation.sweeps.workers import Failed, spread
from loadgen.study.findings import Study
from loadgen.study.measures import study

FILE = "studies.json"
DENSITY = 43.0  # requests a minute and instance, trace 1


class Studied(msgspec.Struct):
    """A study and what was studied."""

    scenario: Scenario
    study: Study


class StudyFailed(Exception):
    """A workload could not be studied; the message says why."""


def scenarios(plan: Plan) -> list[Scenario]:
    """What is studied: a seed each of those that policies are judged on."""
    base = plan.setting("colocated").base
    rate = round(DENSITY * base.instances / 60.0, 3)
    return [
        Scenario(workload=base.workload, rate=rate, seed=seed, warmup_s=0.0, measure_s=plan.study_s)
        for seed in plan.seeds
    ]


def studies(plan: Plan, directory: Path, jobs: int, advance: Callable[[], None] = lambda: None) -> list[Study]:
    """Studies that are kept, or made and kept; `advance` hears of each. Raises OSError and StudyFailed."""
    asked = scenarios(plan)
    kept = read(plan, directory)
    if kept:
        return kept
    found: dict[int, Study] = {}
    for scenario, outcome in spread(asked, _study, group=lambda scenario: scenario.seed, processes=jobs):
        if isinstance(outcome, Failed):
            raise StudyFailed(f"the study of seed {scenario.seed} failed: {outcome.reason}")
        found[scenario.seed] = outcome
        advance()
    done = [Studied(scenario, found[scenario.seed]) for scenario in asked]
    (directory / FILE).write_bytes(msgspec.json.encode(done) + b"\n")
    return [studied.study for studied in done]


def read(plan: Plan, directory: Path) -> list[Study]:
    """The kept studies of a plan; none where they are others, or cannot be read."""
    try:
        kept = msgspec.json.decode((directory / FILE).read_bytes(), type=list[Studied])
    except (OSError, msgspec.DecodeError):
        return []
    return [studied.study for studied in kept] if [s.scenario for s in kept] == scenarios(plan) else []


def _study(scenario: Scenario) -> Study:
    return study(simulation.workload(scenario), scenario.instances)


def findings(found: Sequence[Study]) -> Iterator[Finding]:
    """Figures 5 to 9."""
    if not found:
        return
    ratio = _over(found, "reuse.ratio")
    verdict = Verdict.AS_PUBLISHED if ratio.mean > 0.80 else Verdict.DIFFERS
    yield Finding("prompt tokens that an infinite store reuses", "over 80 %", percent(ratio), verdict)
    within = _over(found, "reuse.within")
    yield level("of the reuse: within the session", 0.67, within, percent, share(0.67))
    system = _over(found, "reuse.system")
    yield level("of the reuse: system prompts", 0.19, system, percent, "18 and 20 %")
    soon = _over(found, "intervals.soon")
    yield level("reuse within 100 s", 0.90, soon, percent, "about 90 %")
    triggers = {name: mean_ci((one.triggers or {}).get(name, 0.0) for one in found) for name in _TRIGGERS}
    order = sorted(_TRIGGERS, key=lambda name: -triggers[name].mean)
    shown = " > ".join(f"{name} {percent(triggers[name])}" for name in order)
    verdict = Verdict.AS_PUBLISHED if order == list(_TRIGGERS) else Verdict.DIFFERS
    yield Finding("triggers of requests", " > ".join(_TRIGGERS), shown, verdict)
    top = mean_ci(dict(one.concentration or ())[0.1] for one in found)
    verdict = Verdict.AS_PUBLISHED if top.mean > 0.3 else Verdict.DIFFERS
    words = "a small fraction of sessions makes most tokens"
    yield Finding("tokens of the largest tenth of the sessions", words, percent(top), verdict)
    rate = _over(found, "rate.mean")
    yield Finding("requests a minute / instances", "43, never under 30", plain(rate), Verdict.AS_PUBLISHED, _CHOSEN)
    median = _over(found, "balance.median")
    yield level("balance potential: median of the minutes' max/mean", 1.7, median, _ratio, "1.7 (trace 2: 1.5)")
    worst = _over(found, "balance.worst")
    verdict = Verdict.AS_PUBLISHED if worst.mean <= 2.4 else Verdict.DIFFERS
    yield Finding("balance potential: worst minute", "under 2.4 (trace 2: 2.1)", _ratio(worst), verdict)


_TRIGGERS = ("agent", "user", "compaction")
_CHOSEN = "Chosen, not found: the study is at the paper's density."


def _over(found: Sequence[Study], path: str) -> Interval:
    return mean_ci(attrgetter(path)(one) for one in found)


def _ratio(value: Interval) -> str:
    return plain(value, 2)
