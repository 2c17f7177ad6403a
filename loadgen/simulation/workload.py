"""The workload of a scenario: generated from a profile, or arranged from a recorded trace.

It depends on workload, rate, seed and length alone, so that all policies of a seed see the same requests.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from loadgen.arrivals import arrange
from loadgen.profiles import PROFILES
from loadgen.scenario import Scenario
from loadgen.simulation.cluster import DRAIN_S
from loadgen.synthetic import generate
from loadgen.timing import PROFILES as MODELS
from loadgen.trace import Trace
from loadgen.traces import load


def workload(scenario: Scenario) -> Trace:
    """The requests of a scenario, until some time after its window.

    Raises:
        traces.TraceError: the file cannot be read, or a line of it is wrong.
        ValueError: no such profile or file, or a rate that is not positive.
    """
    seconds = scenario.warmup_s + scenario.measure_s + DRAIN_S
    if scenario.workload in PROFILES:
        profile = PROFILES[scenario.workload]
        return generate(profile, rate=scenario.rate, seconds=seconds, seed=scenario.seed)
    recorded = _recorded(Path(scenario.workload))
    local = scenario.local_tokens or MODELS[scenario.model].capacity
    fits = local - local % (scenario.block_size or recorded.block_size)
    return arrange(recorded, rate=scenario.rate, seconds=seconds, seed=scenario.seed, max_input=fits)


@lru_cache(maxsize=1)
def _recorded(path: Path) -> Trace:
    """Reading takes longer than a simulation: a sweep's scenarios share it."""
    return load(path)
