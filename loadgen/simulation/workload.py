"""The workload of a scenario: generated from a profile, a recording as it was recorded, or its sessions sampled.

It depends on workload, rate, seed and length alone, so that all policies of a seed see the same requests. What no
instance could hold is left out, as an engine refuses it, and counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

from loadgen.simulation.cluster import DRAIN_S, ImpossibleScenario
from loadgen.simulation.feasibility import cache_tokens
from loadgen.simulation.scenario import Arrivals, Scenario
from loadgen.workloads.arrivals import arrange, fitting
from loadgen.workloads.profiles import PROFILES
from loadgen.workloads.synthetic import generate
from loadgen.workloads.trace import Dispatch, Fact, Trace, TraceRequest
from loadgen.workloads.traces import load

LAST_S = 1.0  # after a recording's last request, which is due at the end of it and counts
WARM_SHARE = 1 / 3  # of a recording, at most: it has to fill the caches before anything is measured


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What the simulated instances could not hold: shares of a workload's requests, and of their tokens."""

    requests: float = 0.0
    tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """The requests to simulate."""

    trace: Trace
    left_out: LeftOut


def workload(scenario: Scenario) -> Trace:
    """The requests of a scenario, until some time after its window. Raises as `prepared`."""
    return prepared(scenario).trace


def prepared(scenario: Scenario) -> Prepared:
    """The requests of a scenario, until some time after its window, and what was left out.

    Raises:
        traces.TraceError: the file cannot be read, or a line of it is wrong.
        ValueError: no such profile or file, a rate that is not positive, or nothing that fits an instance's cache.
    """
    seconds = scenario.warmup_s + scenario.measure_s + DRAIN_S
    if scenario.workload in PROFILES:
        trace = generate(PROFILES[scenario.workload], rate=scenario.rate, seconds=seconds, seed=scenario.seed)
        return _fitted(scenario, trace)
    recorded = _recorded(Path(scenario.workload))
    if scenario.arrivals is Arrivals.RECORDED:
        return _fitted(scenario, _until(recorded, seconds))
    found = _fitted(scenario, recorded)
    drawn = arrange(found.trace, rate=scenario.rate, seconds=seconds, seed=scenario.seed)
    return replace(found, trace=drawn)


def as_recorded(
    scenario: Scenario,
    *,
    warmup_s: float | None = None,
    measure_s: float | None = None,
    dispatch: Dispatch | None = None,
) -> Scenario:
    """The scenario with a recording's own arrivals: its bursts, its rate, and all of it that was not cut short.

    What is not given is the recording's: requests come at their time stamps (or when what they wait for has ended),
    the caches are warmed for up to a third of it, and the rest is measured.

    Raises:
        traces.TraceError: the file cannot be read, or a line of it is wrong.
        ImpossibleScenario: it does not say when its sessions began, or ends at once.
    """
    trace = _recorded(Path(scenario.workload))
    if Fact.ARRIVALS not in trace.facts:
        raise ImpossibleScenario(f"{scenario.workload} does not say when its sessions began: --rate X draws arrivals")
    if trace.duration_s <= 0:
        raise ImpossibleScenario(f"{scenario.workload} has requests at one moment only: --rate X draws arrivals")
    warm = min(Scenario().warmup_s, WARM_SHARE * trace.duration_s) if warmup_s is None else warmup_s
    return replace(
        scenario,
        arrivals=Arrivals.RECORDED,
        dispatch=Dispatch.TRACE if dispatch is None else dispatch,
        rate=len(trace.requests) / trace.duration_s,
        warmup_s=warm,
        measure_s=max(0.0, trace.duration_s - warm) + LAST_S if measure_s is None else measure_s,
    )


def _until(trace: Trace, seconds: float) -> Trace:
    """The first `seconds` of a recording, from time 0."""
    start = trace.requests[0].arrival_s if trace.requests else 0.0
    kept = [replace(r, arrival_s=r.arrival_s - start) for r in trace.requests if r.arrival_s - start < seconds]
    return replace(trace, requests=kept)


def _fitted(scenario: Scenario, trace: Trace) -> Prepared:
    """What an instance's cache can hold.

    Raises:
        ImpossibleScenario: that is nothing.
    """
    most = cache_tokens(scenario, scenario.block_size or trace.block_size)
    kept, dropped = fitting(trace, most)
    if not dropped:
        return Prepared(trace, LeftOut())
    if not kept.requests:
        raise ImpossibleScenario(
            f"no request of {scenario.workload} fits an instance's cache of {most} tokens: raise --local-tokens, or "
            "choose another --model"
        )
    left = LeftOut(dropped / len(trace.requests), 1 - _tokens(kept.requests) / _tokens(trace.requests))
    return Prepared(kept, left)


def _tokens(requests: Sequence[TraceRequest]) -> int:
    return sum(request.input + request.output for request in requests)


def content(workload: str) -> str | None:
    """A digest of a recorded trace's bytes, of a directory's .json files with their names; None for a profile.

    None too for what cannot be read: loading it says why.
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
