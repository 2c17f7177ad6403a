"""What a scenario's requests are: a recording as it was, or sampled; what no instance could hold is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen import simulation
from loadgen.simulation.cluster import DRAIN_S
from loadgen.simulation.scenario import Arrivals, Scenario
from loadgen.simulation.workload import as_recorded, prepared, workload
from loadgen.workloads.trace import Dispatch

BURST = [100, 100, 100, 101, 400, 700, 1_000]  # seconds


def recording(path: Path, times: list[int] = BURST, lengths: dict[int, int] | None = None) -> str:
    """Requests of 512 tokens and one, or as long as said by their place, each with blocks of its own."""
    lines = []
    for place, second in enumerate(times):
        tokens = (lengths or {}).get(place, 512)
        names = [1_000 * place + block for block in range(-(-tokens // 512))]
        lines.append(
            f'{{"timestamp": {1_000 * second}, "input_length": {tokens}, "output_length": 1, "hash_ids": {names}}}'
        )
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_a_recording_keeps_its_arrivals(tmp_path: Path) -> None:
    """Bursts and pauses are those that were recorded, from the first request on; its rate is its own, and what is not
    asked for is measured of all of it, after a third to warm up."""
    asked = as_recorded(Scenario(workload=recording(tmp_path / "t.jsonl")))
    assert (asked.arrivals, asked.dispatch) == (Arrivals.RECORDED, Dispatch.TRACE)
    assert asked.rate == pytest.approx(7 / 900)
    assert (asked.warmup_s, asked.measure_s) == (300.0, 601.0)
    assert [request.arrival_s for request in workload(asked).requests] == [second - 100 for second in BURST]


def test_a_recording_is_cut_where_the_simulation_ends(tmp_path: Path) -> None:
    """Only so much of it is simulated as was asked for, and what follows so that the end is under load."""
    asked = as_recorded(Scenario(workload=recording(tmp_path / "t.jsonl")), warmup_s=100.0, measure_s=200.0)
    assert max(request.arrival_s for request in workload(asked).requests) < 300 + DRAIN_S
    assert len(workload(asked).requests) == 5


def test_sampling_is_asked_for(tmp_path: Path) -> None:
    """Sessions of a recording at a rate of one's own: as many as that comes to, at other times."""
    asked = Scenario(workload=recording(tmp_path / "t.jsonl"), rate=0.1, warmup_s=1_000.0, measure_s=2_000.0)
    assert len(workload(asked).requests) == pytest.approx(312, rel=0.2)


@pytest.mark.parametrize("arrivals", list(Arrivals))
def test_what_no_cache_holds_is_counted(tmp_path: Path, arrivals: Arrivals) -> None:
    """Shares of requests and of tokens, whichever way the recording is used; what fits is simulated."""
    path = recording(tmp_path / "t.jsonl", lengths={1: 9_000, 5: 5_000})
    asked = Scenario(workload=path, rate=0.1, arrivals=arrivals, local_tokens=6_000, warmup_s=400.0, measure_s=600.0)
    found = prepared(asked)
    assert found.left_out.requests == pytest.approx(1 / 7)
    assert found.left_out.tokens == pytest.approx(9_001 / (5 * 513 + 9_001 + 5_001))
    assert max(request.input for request in found.trace.requests) == 5_000
    rows = simulation.simulate(asked, found.trace)
    settings = simulation.info(asked, rows, found.left_out).settings
    assert settings["left_out_requests"] == pytest.approx(1 / 7)
    assert settings["arriving_per_s"] == pytest.approx(sum(400 <= row.due_s < 1_000 for row in rows) / 600)


def test_a_recording_without_times_has_to_be_sampled(tmp_path: Path) -> None:
    """Sessions that do not say when they began, or that all began at once, have no arrivals to keep."""
    path = recording(tmp_path / "t.jsonl", times=[5, 5])
    with pytest.raises(simulation.ImpossibleScenario, match="at one moment only: --rate X"):
        as_recorded(Scenario(workload=path))
    timeless = tmp_path / "session.json"
    timeless.write_text('{"id": "s", "block_size": 64, "reqs": [{"t": 0.0, "in": 64, "out": 1, "h": [[1, 1]]}]}')
    with pytest.raises(simulation.ImpossibleScenario, match="does not say when its sessions began: --rate X"):
        as_recorded(Scenario(workload=str(timeless)))


@pytest.mark.parametrize(("arriving", "off"), [(2.0, 0.0), (2.19, 0.0), (1.81, 0.0), (2.5, 0.25), (1.0, -0.5)])
def test_an_arriving_rate_may_differ_a_little(arriving: float, off: float) -> None:
    """Up to a tenth of the offered one, as chance has it; more is told."""
    assert simulation.off(2.0, arriving) == pytest.approx(off)
