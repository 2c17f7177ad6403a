"""What a simulation is asked to do, as one frozen value. Every field is an option of `loadgen simulate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from loadgen.engine.scheduler import Limits
from loadgen.results.records import Slo
from loadgen.workloads.trace import Dispatch


class Fetch(StrEnum):
    """What a fetch from the global tier holds up."""

    BLOCKING = "blocking"  # the whole step of the instance
    ASYNC = "async"  # only the request that waits for it


class Layout(StrEnum):
    """The instances that decode."""

    COLOCATED = "colocated"  # every instance does everything
    DISAGGREGATED = "disaggregated"  # instances prefill; an ideal decoder takes over, so only prefill is measured


class Arrivals(StrEnum):
    """When sessions begin."""

    DRAWN = "drawn"  # at random, at `rate`: sessions of a profile, or of a recording, sampled
    RECORDED = "recorded"  # when they began in the recording; `rate` is its own


class IndexView(StrEnum):
    """What the router's index sees of the instances' caches."""

    EXACT = "exact"  # their KV events, when the step that caused them ends
    NEVER_EVICTING = "never-evicting"  # what they stored, and no eviction
    ROUTED = "routed"  # no events: what the router itself sent where


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One simulation. Times in seconds, lengths in tokens."""

    policy: str = "smetric"
    options: Mapping[str, float] = field(default_factory=dict)  # of the policy
    workload: str = "paper-trace-1"  # a profile of `generate`, or the path of a trace
    rate: float = 8.0  # requests a second, offered to the whole cluster, on average
    seed: int = 0
    arrivals: Arrivals = Arrivals.DRAWN
    instances: int = 32
    model: str = "30b-h20"  # a row of timing.PROFILES
    block_size: int | None = None  # of the simulated caches; None: the trace's own
    batch_tokens: int = Limits().batch_tokens  # of one step of an instance
    long_prefill_threshold: int = 0  # of these, for one prompt at most; 0: no such limit
    local_tokens: int | None = None  # an instance's KV cache; None: what the model leaves on its accelerator
    global_ratio: float = 4.6  # the global tier's tokens an instance / local tokens; 0: no global tier
    fetch: Fetch = Fetch.BLOCKING
    fetch_gbps: float = 4.0  # gigabytes a second, of each instance
    layout: Layout = Layout.COLOCATED
    dispatch: Dispatch = Dispatch.THINK
    index: IndexView = IndexView.EXACT
    warmup_s: float = 1800.0  # simulated and discarded: it fills the caches
    measure_s: float = 900.0
    slo: Slo = field(default_factory=Slo)
