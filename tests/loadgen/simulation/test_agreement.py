"""Live and simulated runs of one workload agree: the same router, engine model and cache, with and without a clock."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from loadgen.engine.options import MODEL_DIR
from loadgen.replay import run
from loadgen.replay.replay import Options
from loadgen.replay.run import Gateway
from loadgen.replay.words import Words
from loadgen.results.records import Row, RunInfo
from loadgen.simulation import simulate
from loadgen.simulation.scenario import Scenario
from loadgen.stack.stack import Stack
from loadgen.workloads.profiles import PAPER_TRACE_1
from loadgen.workloads.scaling import scaled
from loadgen.workloads.synthetic import generate_whole
from loadgen.workloads.trace import Dispatch, Trace

ENGINES = 3
MODEL = "30b-h20-quarter"
CACHE = 40_000  # tokens: less than the sessions need, so that blocks are evicted
BLOCK = 16
SECONDS = 150.0  # of the model
SPEED = 10.0
# Which of equally good instances is taken is a matter of chance, and with it who has a shared system prompt cached.
AGREE = 0.85


def workload() -> Trace:
    """Some 60 requests of 28 sessions of which most share a system prompt, a quarter as long as the paper's."""
    trace = generate_whole(PAPER_TRACE_1, sessions=80, rate=1.4, seed=2, block_size=4 * BLOCK)
    return scaled(replace(trace, requests=[one for one in trace.requests if one.arrival_s < SECONDS]), 0.25)


def replayed(trace: Trace, directory: Path) -> list[Row]:
    engine = ["--profile", MODEL, "--time-scale", str(1 / SPEED), "--blocks", str(CACHE // BLOCK)]
    info = RunInfo(
        kind="replay", label="", policy="smetric", workload="", rate=1, seed=2, instances=[], window=(0, SECONDS)
    )
    with Stack(ENGINES, policy={"policy": "smetric"}, engine_options=engine) as stack:
        gateway = Gateway(url=stack.url, headers={}, timeout_s=60)
        options = Options(dispatch=Dispatch.TRACE, speed=SPEED, model="tiny")
        return list(run.perform(gateway, trace, Words(trace, MODEL_DIR), options, info, directory).rows)


def simulated(trace: Trace) -> list[Row]:
    scenario = Scenario(
        policy="smetric",
        instances=ENGINES,
        model=MODEL,
        local_tokens=CACHE,
        global_ratio=0.0,
        dispatch=Dispatch.TRACE,
        warmup_s=0.0,
        measure_s=SECONDS,
    )
    return simulate(scenario, trace)


def stayed(trace: Trace, rows: Mapping[str, Row]) -> dict[str, bool]:
    """Of each request with a parent, whether it came to the parent's instance."""
    return {
        one.id: rows[one.id].instance == rows[one.parent].instance for one in trace.requests if one.parent is not None
    }


def median(values: Iterable[float | None]) -> float:
    return statistics.median(value for value in values if value is not None)


def test_live_and_simulated_runs_agree(tmp_path: Path) -> None:
    """Through a real Envoy and simulated, the same requests find the same tokens cached and stay where they were, but
    for the few that chance decides; the prompts that are sent are as long as the workload says."""
    trace = workload()
    live = {row.request: row for row in replayed(trace, tmp_path)}
    model = {row.request: row for row in simulated(trace)}
    assert live.keys() == model.keys() == {one.id for one in trace.requests}
    assert [row.error for row in live.values() if row.error] == []
    assert all(abs(live[name].input - row.input) <= BLOCK for name, row in model.items())

    hits = [abs((live[name].local or 0) - (row.local or 0)) <= BLOCK for name, row in model.items()]
    assert sum(hits) >= AGREE * len(hits)
    follow_ups = stayed(trace, model)
    routes = [follow_ups[name] == value for name, value in stayed(trace, live).items()]
    assert sum(routes) >= AGREE * len(routes)
    assert sum(row.local or 0 for row in model.values()) > 0
    for name, measure in (("TTFT", lambda row: row.ttft_s), ("TPOT", lambda row: row.tpot_s)):
        real, expected = (median(map(measure, rows.values())) for rows in (live, model))
        print(f"{name} p50: live {real * SPEED:.3f} s, simulated {expected:.3f} s of the model")
    print(f"hits agree for {sum(hits)} of {len(hits)}, routes for {sum(routes)} of {len(routes)} follow-ups")
