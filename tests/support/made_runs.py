"""Runs and sweeps made up for tests of the report: rows with the shape of an agent workload, without any simulation."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from loadgen.results.measures import measure
from loadgen.results.records import Row, RunInfo, RunWriter
from loadgen.simulation.scenario import Scenario
from loadgen.simulation.sweeps.sweep import FILE, Result, key, label

# How much a policy's sessions stay, and how slow its latency's tail is.
CHARACTERS = {
    "smetric": (0.9, 1.0),
    "smetric-basic": (0.95, 1.2),
    "bailian": (0.97, 1.25),
    "lmetric": (0.6, 1.15),
    "least-loaded": (0.05, 1.3),
}


def info(policy: str, seed: int = 0, *, instances: int = 8, minutes: int = 5, **given: Any) -> RunInfo:
    """A run whose window begins after a minute."""
    return RunInfo(
        **{
            "kind": "simulate",
            "label": policy,
            "policy": policy,
            "workload": "paper-trace-1",
            "rate": 2.0,
            "seed": seed,
            "instances": [f"i{number}" for number in range(instances)],
            "window": (60.0, 60.0 * (minutes + 1)),
            "settings": {"global_ratio": 4.6, "model": "30b-h20"},
            **given,
        }
    )


def rows(info: RunInfo) -> Iterator[Row]:
    """Sessions of up to ten turns over the run's time."""
    rng = random.Random(f"{info.label} {info.seed} {info.rate}")
    stays, slow = CHARACTERS.get(info.policy, (0.5, 1.1))
    end, session = info.window[1], 0
    for number in range(int(end * info.rate)):
        if number % 8 == 0:
            session, place = session + 1, rng.choice(info.instances)
        due = number / info.rate
        instance = place if rng.random() < stays else rng.choice(info.instances)
        prompt = int(rng.lognormvariate(10, 0.8))
        first = due + slow * rng.lognormvariate(0, 1.2) * (0.3 + info.rate / 8)
        produced = int(rng.lognormvariate(5, 1)) + 1
        local = int(prompt * (0.65 if instance == place else 0.1))
        yield Row(
            request=f"r{number}",
            session=f"s{session}",
            turn=number % 8,
            due_s=due,
            sent_s=due,
            first_s=first,
            end_s=first + produced * slow * rng.lognormvariate(3.0, 0.4) / 1e3,
            input=prompt,
            output=produced,
            produced=produced,
            local=local,
            fetched=int(prompt * 0.75) - local,
            instance=instance,
            reason=rng.choice(["first-turn", "follow-up", "overload"]),
            status=200,
        )


def write_run(directory: Path, policy: str, seed: int = 0, **given: Any) -> Path:
    """A run's directory."""
    run = info(policy, seed, **given)
    with RunWriter(directory, run) as writer:
        for row in rows(run):
            writer.add(row)
    return directory


def scenario(policy: str = "smetric", options: Mapping[str, float] | None = None, **given: Any) -> Scenario:
    """One simulation of the sweep that `write_sweep` makes up."""
    return replace(Scenario(policy=policy, options=options or {}, rate=2.0, instances=8), **given)


def write_sweep(directory: Path, scenarios: list[Scenario]) -> Path:
    """A sweep's directory with a line for each scenario."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / FILE).open("wb") as file:
        for one in scenarios:
            run = info(one.policy, one.seed, label=label(one), rate=one.rate, instances=one.instances, minutes=3)
            measures = msgspec.to_builtins(measure(rows(run), run, one.slo))
            result = Result(key=key(one), scenario=one, measures=measures)
            file.write(msgspec.json.encode(result) + b"\n")
    return directory
