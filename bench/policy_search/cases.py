"""What is simulated, as data: parts of the search, their cases, and who competes in each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

from extproc.routing.pools.loads import Loads
from extproc.routing.pools.pool import Pool
from loadgen.simulation.product_router import ProductRouter
from loadgen.simulation.scenario import Fetch, IndexView, Layout, Scenario
from loadgen.simulation.sweeps import sweep
from loadgen.workloads.trace import Dispatch

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
CLAUDE_CODE = TRACES / "claude-code" / "sessions.jsonl.gz"
MOONCAKE = TRACES / "mooncake" / "conversation_trace.jsonl"

Who = tuple[str, Mapping[str, float]]
SMETRIC: Who = ("smetric", {})
LEAST_LOADED: Who = ("least-loaded", {})
DYNAMO: Who = ("dynamo", {})
BAILIAN: tuple[Who, ...] = tuple(("bailian", {"weight": weight}) for weight in (0.3, 0.5, 0.6, 0.7, 0.8, 0.9))
LMETRIC: tuple[Who, ...] = (("lmetric", {}), ("lmetric", {"idle": 1.0}))
WINNER: Who = ("least-delay", {})

BASELINES = (LEAST_LOADED, *BAILIAN, *LMETRIC, DYNAMO)
RIVALS = (LEAST_LOADED, *(BAILIAN[i] for i in (0, 1, 3)), *LMETRIC)  # those that are best somewhere
FINALISTS = (SMETRIC, WINNER)
LATE_S = 0.2

SMALL = Scenario(instances=16, warmup_s=900.0, measure_s=600.0, block_size=128)
LARGE = Scenario(block_size=128)


def varied(scenario: Scenario, rows: Path | None) -> sweep.Measures:
    """`sweep.simulated`, in a process that has imported this package, and so knows its workloads and candidates."""
    return sweep.simulated(scenario, rows)


def until_the_end(scenario: Scenario, rows: Path | None) -> sweep.Measures:
    """Simulate a router that no event tells how far a prefill is: it counts until the reply ends."""
    with patch.object(Pool, "tells", lambda pool, instance: False):
        return sweep.simulated(scenario, rows)


def late(scenario: Scenario, rows: Path | None) -> sweep.Measures:
    """Simulate events that are LATE_S on their way to what they tell of a prefill."""
    learn = ProductRouter.tell

    def told(router: ProductRouter, instance: str, stored: Sequence[int], now: float) -> None:
        waiting = router.__dict__.setdefault("waiting", deque())
        waiting.append((now + LATE_S, instance, stored))
        while waiting and waiting[0][0] <= now:
            _, one, keys = waiting.popleft()
            learn(router, one, keys, now)

    with patch.object(ProductRouter, "tell", told):
        return sweep.simulated(scenario, rows)


def from_headers(scenario: Scenario, rows: Path | None) -> sweep.Measures:
    """Simulate a router that takes headers for the end of prefill, before engines that send them at once."""
    start = Loads.start
    with patch.object(Loads, "start", lambda loads, pool, instance, _, __=0.0: start(loads, pool, instance, 0)):
        return sweep.simulated(scenario, rows)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One cluster under one workload, and its rates."""

    name: str
    base: Scenario
    rates: tuple[float, ...]
    work: Callable[[Scenario, Path | None], sweep.Measures] = sweep.simulated

    def scenarios(self, who: Sequence[Who], seeds: Sequence[int]) -> list[Scenario]:
        """All policies of a seed side by side, so that a trace is made once."""
        return [
            replace(self.base, rate=rate, seed=seed, policy=policy, options=options)
            for rate in self.rates
            for seed in seeds
            for policy, options in who
        ]


@dataclass(frozen=True, kw_only=True)
class Part:
    """Cases with the same competitors: a table of the document."""

    title: str
    cases: tuple[Case, ...]
    who: tuple[Who, ...]
    seeds: tuple[int, ...]
    baselines: bool = False  # whether SMetric is held against the best of them, instead of all against SMetric


def _on(scenario: Scenario, share: float) -> tuple[Case, Case, Case, Case]:
    """The workloads; `share` scales rates meant for 32 instances."""

    def rates(*of: float) -> tuple[float, ...]:
        return tuple(rate * share for rate in of)

    claude = replace(scenario, workload=str(CLAUDE_CODE))
    mooncake = replace(scenario, workload=str(MOONCAKE), dispatch=Dispatch.TRACE, block_size=512)
    return (
        Case(name="synthetic", base=scenario, rates=rates(7, 8)),
        Case(name="synthetic, no global tier", base=replace(scenario, global_ratio=0.0), rates=rates(4, 5)),
        Case(name="Claude Code", base=claude, rates=rates(3, 3.5)),
        Case(
            name="Mooncake",
            base=mooncake,
            rates=rates(
                12,
            ),
        ),
    )


_SCREEN = tuple(replace(case, rates=(rate,)) for case, rate in zip(_on(SMALL, 0.5), (3.5, 2.0, 1.5, 6.0), strict=True))
_DELAYS: tuple[Who, ...] = tuple(
    ("delay", options)
    for options in (
        {"queue": 0.0},
        {"queue": 0.5},
        {"queue": 2.0},
        {"queue": 4.0},
        {"held_up": 0.0},
        {"held_up": 0.25},
        {"held_up": 0.5},
        {"held_up": 2.0},
        {"queue": 0.0, "held_up": 0.0, "decode": 2000.0},
        {"decode": 500.0},
        {"pair": 1.0},
        {"refetch": 0.5, "pair": 1.0},
    )
)
_VARIANTS: tuple[Who, ...] = (
    ("smetric-near", {"first": 1.0}),
    ("smetric-near", {"first": 1.0, "near": 1.0}),
    ("smetric-near", {"slack": 1.0}),
    ("smetric-near", {"slack": 2.0}),
    ("sticky-delay", {}),
)


def _varied(name: str, rates: tuple[float, ...] = (3.5,), **fields: object) -> Case:
    work = varied if "workload" in fields else sweep.simulated
    return Case(name=name, base=replace(SMALL, **fields), rates=rates, work=work)  # type: ignore[arg-type]


_BASE = _varied("base: blocking 4 GB/s, exact index, think times, tier 4.6x")

# Seeds that nobody tuned on. Shorter than the others: what is asked is whether one leads, not by how much at its peak.
_SHORT = Scenario(instances=16, warmup_s=600.0, measure_s=400.0, block_size=128)


def _short(name: str, rate: float, **fields: object) -> Case:
    return Case(name=name, base=replace(_SHORT, **fields), rates=(rate,))  # type: ignore[arg-type]


PARTS: Mapping[str, Part] = {
    "knee": Part(
        title="Least delay against SMetric, generated agents near the knee",
        cases=(
            _short("16 instances", 3.5),
            _short("16 instances, no tier", 2.0, global_ratio=0.0),
            _short("8 instances", 1.75, instances=8),
            _short("8 instances, no tier", 1.0, instances=8, global_ratio=0.0),
        ),
        who=(SMETRIC, WINNER),
        seeds=(100, 101, 102, 103, 104, 105),
    ),
    "nowhere-behind": Part(
        title="Least delay against SMetric, where it might lose",
        cases=(
            _short("Mooncake", 6.0, workload=str(MOONCAKE), dispatch=Dispatch.TRACE, block_size=512),
            _short("Claude Code", 1.5, workload=str(CLAUDE_CODE)),
            _short("index: routed", 3.5, index=IndexView.ROUTED),
            _short("asynchronous fetch, 6.5 GB/s", 3.5, fetch=Fetch.ASYNC, fetch_gbps=6.5),
            _short("disaggregated", 4.5, layout=Layout.DISAGGREGATED),
            _short("235B, 8 instances of 4 H20", 1.4, model="235b-4xh20", instances=8),
            _short("32 instances", 7.0, instances=32),
        ),
        who=(SMETRIC, WINNER),
        seeds=(100, 101, 102),
    ),
    "late": Part(
        title="Least delay with events late or absent, 16 instances",
        cases=(
            _short("events", 3.5),
            replace(_short("events 0.2 s late", 3.5), work=late),
            replace(_short("no events", 3.5), work=until_the_end),
        ),
        who=(SMETRIC, WINNER),
        seeds=(100, 101, 102),
    ),
    "screen": Part(
        title="Candidates, at one rate near the knee (16 instances)",
        cases=tuple(replace(case, work=varied) for case in _SCREEN),
        who=(SMETRIC, *_VARIANTS, *_DELAYS, WINNER),
        seeds=(0, 1),
    ),
    "signal": Part(
        title="What the router knows of the end of a prefill (16 instances)",
        cases=tuple(
            replace(case, name=f"{case.name}, {name}", work=work)
            for case in _SCREEN
            for name, work in (
                ("until the reply ends", until_the_end),
                ("events 0.2 s late", late),
                ("until the headers", from_headers),
            )
        ),
        who=FINALISTS,
        seeds=(0, 1, 2),
    ),
    "finals": Part(
        title="Finalists (32 instances)",
        cases=_on(LARGE, 1.0),
        who=FINALISTS,
        seeds=(0, 1, 2, 3, 4),
    ),
    "elsewhere": Part(
        title="The winner in other settings",
        cases=(
            _varied("asynchronous fetch, 6.5 GB/s", fetch=Fetch.ASYNC, fetch_gbps=6.5),
            _varied("global tier 0.5x", (2.5,), global_ratio=0.5),
            _varied("global tier 1.6x", global_ratio=1.6),
            _varied("index: routed", index=IndexView.ROUTED),
            _varied("index: never evicting", index=IndexView.NEVER_EVICTING),
            _varied("disaggregated", (4.5,), layout=Layout.DISAGGREGATED),
            Case(
                name="235B, 8 instances of 4 H20",
                base=replace(SMALL, model="235b-4xh20", instances=8),
                rates=(1.4,),
            ),
        ),
        who=(*FINALISTS, LEAST_LOADED, BAILIAN[1]),
        seeds=(0, 1, 2, 3),
    ),
    "margin": Part(
        title="SMetric against the best-tuned baseline, one factor at a time (16 instances)",
        cases=(
            _BASE,
            _varied("fetch: blocking 3 GB/s", fetch_gbps=3.0),
            _varied("fetch: blocking 6.5 GB/s", fetch_gbps=6.5),
            _varied("fetch: asynchronous 6.5 GB/s", fetch=Fetch.ASYNC, fetch_gbps=6.5),
            _varied("index: never evicting", index=IndexView.NEVER_EVICTING),
            _varied("index: routed", index=IndexView.ROUTED),
            _varied("tier: none", (2.0,), global_ratio=0.0),
            _varied("tier: 0.5x", (2.5,), global_ratio=0.5),
            _varied("tier: 1.6x", global_ratio=1.6),
            _varied("dispatch: by the trace", dispatch=Dispatch.TRACE),
            _varied("forks: none", workload="paper-trace-1-no-forks"),
            _varied("skew: private prompts", workload="paper-trace-1-private"),
            _varied("skew: one prompt for all", workload="paper-trace-1-one-prompt"),
        ),
        who=(SMETRIC, *RIVALS),
        seeds=(0, 1, 2, 3),
        baselines=True,
    ),
    "tuning": Part(
        title="Every setting of every baseline, and load (16 instances)",
        cases=(replace(_BASE, rates=(2.0, 3.0, 4.0)),),
        who=(SMETRIC, *BASELINES),
        seeds=(0, 1, 2, 3),
    ),
}
