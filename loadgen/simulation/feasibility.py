"""Which scenarios can be simulated at all, told before a workload is made: the one check of `simulate` and `sweep`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from extproc.routing.policies import registry
from loadgen.engine.timing import PROFILES as MODELS
from loadgen.simulation.cluster import ImpossibleScenario
from loadgen.simulation.scenario import Scenario
from loadgen.workloads.profiles import PROFILES
from loadgen.workloads.traces import detect

POSITIVE = ("rate", "measure_s", "instances", "block_size", "batch_tokens", "local_tokens", "fetch_gbps", "slo.tpot_s")
FROM_ZERO = ("long_prefill_threshold", "warmup_s", "global_ratio", "slo.ttft_s", "slo.ttft_per_token_s")


class UnfitValue(ImpossibleScenario):
    """A field of a scenario has a value that it cannot have; `field` is its path: "rate", "slo.tpot_s", "options.x"."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(f"{field} {value}: {expected}")
        self.field = field
        self.value = value
        self.expected = expected


def check(scenario: Scenario) -> None:
    """Refuse what no workload could make right.

    Raises:
        UnfitValue: a number out of its range or not finite; a policy, option, model or workload that there is not.
        traces.TraceError: the workload is a file of no known format.
    """
    for field, value in _numbers(scenario, POSITIVE):
        if not 0 < value < math.inf:
            raise UnfitValue(field, value, "a positive number is expected")
    for field, value in _numbers(scenario, FROM_ZERO):
        if not 0 <= value < math.inf:
            raise UnfitValue(field, value, "0 or more is expected")
    if scenario.model not in MODELS:
        raise UnfitValue("model", scenario.model, f"one of {', '.join(MODELS)} is expected")
    _check_policy(scenario)
    if scenario.block_size is not None:
        cache_tokens(scenario, scenario.block_size)
    _check_workload(scenario.workload)


def cache_tokens(scenario: Scenario, block_size: int) -> int:
    """Tokens that an instance's cache holds in whole blocks. Raises ImpossibleScenario where there is room for none."""
    local = scenario.local_tokens or MODELS[scenario.model].capacity
    if block_size > local:
        raise ImpossibleScenario(
            f"a block of {block_size} tokens does not fit an instance's cache of {local} tokens: a smaller block size, "
            "or a larger cache (local tokens), is needed"
        )
    return local - local % block_size


def _check_policy(scenario: Scenario) -> None:
    """Options as a route's metadata may have them (`extproc.config.route`): finite, 0 or more."""
    if scenario.policy not in registry.names():
        raise UnfitValue("policy", scenario.policy, f"one of {', '.join(registry.names())} is expected")
    known = registry.options(scenario.policy)
    for name, value in scenario.options.items():
        field = f"options.{name}"
        if name not in known:
            raise UnfitValue(field, value, f"{scenario.policy} has {', '.join(known) or 'no options'}")
        if math.isinf(value) and value > 0:
            raise UnfitValue(field, value, "a finite number is expected; for no limit use a large one, such as 1e9")
        if not 0 <= value < math.inf:
            raise UnfitValue(field, value, "a number of 0 or more is expected")


def _check_workload(workload: str) -> None:
    path = Path(workload)
    if workload in PROFILES or path.is_dir():
        return
    if not path.exists():
        raise UnfitValue("workload", workload, f"neither a file nor a profile, which are {', '.join(PROFILES)}")
    detect(path)


def _numbers(scenario: Scenario, names: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    for name in names:
        owner = scenario.slo if name.startswith("slo.") else scenario
        value = getattr(owner, name.removeprefix("slo."))
        if value is not None:
            yield name, value
