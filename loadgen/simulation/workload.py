"""The workload of a scenario: generated from a profile, or arranged from a recorded trace.

It depends on workload, rate, seed and length alone, so that all policies of a seed see the same requests.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache, partial
from pathlib import Path

from loadgen.simulation.checks import cache_tokens
from loadgen.simulation.cluster import DRAIN_S, ImpossibleScenario
from loadgen.simulation.scenario import Scenario
from loadgen.workloads.arrivals import arrange, fitting
from loadgen.workloads.profiles import PROFILES
from loadgen.workloads.synthetic import generate
from loadgen.workloads.trace import Trace
from loadgen.workloads.traces import load


def workload(scenario: Scenario) -> Trace:
    """The requests of a scenario, until some time after its window.

    Raises:
        traces.TraceError: the file cannot be read, or a line of it is wrong.
        ValueError: no such profile or file, a rate that is not positive, or nothing that fits an instance's cache.
    """
    seconds = scenario.warmup_s + scenario.measure_s + DRAIN_S
    if scenario.workload in PROFILES:
        trace = generate(PROFILES[scenario.workload], rate=scenario.rate, seconds=seconds, seed=scenario.seed)
        trace, dropped = fitting(trace, _fits(scenario, trace))
        if dropped and not trace.requests:
            raise ImpossibleScenario(
                f"no request of {scenario.workload} fits an instance's cache of {_fits(scenario, trace)} tokens: "
                "raise --local-tokens, or choose another --model"
            )
        return trace
    trace = _recorded(Path(scenario.workload))
    return arrange(trace, rate=scenario.rate, seconds=seconds, seed=scenario.seed, max_input=_fits(scenario, trace))


def _fits(scenario: Scenario, trace: Trace) -> int:
    """Tokens of the largest request that an instance can hold: larger ones are left out, as an engine refuses them."""
    return cache_tokens(scenario, scenario.block_size or trace.block_size)


def content(workload: str) -> str | None:
    """A digest of a recorded trace's bytes, of a directory's .json files with their names; None for a profile.

    None too for what cannot be read: whoever loads it says why.
    """
    path = Path(workload)
    if workload in PROFILES:
        return None
    try:
        if not path.is_dir():
            return _digested(path)
        digest = hashlib.blake2b(digest_size=8)
        for file in sorted(path.glob("*.json")):
            digest.update(f"{file.name}\0{_digested(file)}\0".encode(errors="surrogateescape"))
    except OSError:
        return None
    return digest.hexdigest()


def _digested(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, partial(hashlib.blake2b, digest_size=8)).hexdigest()


@lru_cache(maxsize=1)
def _recorded(path: Path) -> Trace:
    """Reading takes longer than a simulation: a sweep's scenarios share it."""
    return load(path)
