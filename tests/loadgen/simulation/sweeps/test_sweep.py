"""Sweeps: every combination once, over processes, kept line by line, and summed up over paired seeds."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadgen import cli, simulation
from loadgen.command_error import CommandError
from loadgen.commands.sweep import scenarios
from loadgen.results.measures import Measures, measure
from loadgen.results.records import Row, RunInfo
from loadgen.simulation.scenario import Arrivals, Fetch, Scenario
from loadgen.simulation.sweeps import sweep
from loadgen.simulation.sweeps.peaks import curves, more, settings
from loadgen.simulation.sweeps.table import notes, tables
from loadgen.simulation.sweeps.workers import Failed, Queue, spread
from loadgen.simulation.workload import LeftOut
from loadgen.workloads.trace import Dispatch

SCENARIOS = [Scenario(policy=policy, rate=4.0, seed=seed) for seed in (0, 1) for policy in ("smetric", "lmetric")]


def measures(tps: float) -> Measures:
    """Those of one request of `tps` tokens in a window of a second."""
    row = Row(request="r", session="s", turn=0, due_s=0, sent_s=0, first_s=0.1, end_s=0.2, input=1, output=1)
    row.produced = int(tps)
    info = RunInfo(
        kind="simulate", label="", policy="", workload="", rate=1, seed=0, instances=["a"], window=(0.0, 1.0)
    )
    return measure([row], info)


def fake(scenario: Scenario, rows: Path | None) -> dict[str, Any]:
    """A simulation whose requests are its process's id, and that fails or dies where the scenario says so."""
    if scenario.workload == "broken":
        raise ValueError("no such workload")
    if scenario.workload == "deadly":
        os._exit(3)
    if scenario.workload == "slow":
        time.sleep(60)
    if rows is not None:
        rows.mkdir(parents=True)
        (rows / "run.json").write_text("{}")
    return {**_json(measures(1.0)), "requests": os.getpid()}


def _json(found: Measures) -> dict[str, Any]:
    """As a line of a sweep has them: nan is null."""
    decoded: dict[str, Any] = json.loads(json.dumps(asdict(found)).replace("NaN", "null"))
    return decoded


def test_a_scenario_is_simulated_once(tmp_path: Path) -> None:
    """What the file has is not done again, a new scenario is, and results come in the scenarios' order."""
    path = tmp_path / sweep.FILE
    first = sweep.run(SCENARIOS[:3], path, jobs=1, work=fake)
    more = sweep.run([*SCENARIOS, SCENARIOS[0]], path, jobs=1, work=fake)
    assert more[:3] == first
    assert more[4] == more[0]
    assert [result.scenario for result in more] == [*SCENARIOS, SCENARIOS[0]]
    assert len(path.read_text().splitlines()) == 4
    assert sweep.read(path) == more[:4]


def test_the_key_is_of_what_was_chosen() -> None:
    """Equal scenarios have equal keys, in whatever order options stand; any difference makes another key."""
    one = Scenario(policy="smetric", options={"overload": 2.0, "hit_ratio": 0.5})
    assert sweep.key(one) == sweep.key(replace(one, options={"hit_ratio": 0.5, "overload": 2.0}))
    others = [replace(one, options={}), replace(one, fetch=Fetch.ASYNC), replace(one, slo=replace(one.slo, tpot_s=1))]
    assert len({sweep.key(scenario) for scenario in [one, *others]}) == 4


def test_a_half_written_line_is_done_again(tmp_path: Path) -> None:
    """A line that was cut off by an interruption is dropped from the file and its simulation repeated."""
    path = tmp_path / sweep.FILE
    sweep.run(SCENARIOS[:2], path, jobs=1, work=fake)
    text = path.read_bytes()
    path.write_bytes(text[:-20])
    heard: list[sweep.Result] = []
    sweep.run(SCENARIOS[:2], path, jobs=1, work=fake, progress=heard.append)
    assert len(heard) == 2
    assert len(path.read_bytes().splitlines()) == 2
    assert all(json.loads(line) for line in path.read_bytes().splitlines())


def test_a_broken_file_is_refused_with_its_line(tmp_path: Path) -> None:
    """A whole line that is no result is an error with path and line, and the file stays as it is."""
    path = tmp_path / sweep.FILE
    sweep.run(SCENARIOS[:1], path, jobs=1, work=fake)
    path.write_text(path.read_text() + '{"key": 3}\n')
    text = path.read_text()
    with pytest.raises(sweep.SweepFailed, match=r"sweep\.jsonl:2: .*`\$\.key`"):
        sweep.run(SCENARIOS[:1], path, jobs=1, work=fake)
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"measures": {}}, "measures: .*requests"),
        ({"measures": "fast"}, "measures"),
        ({"measures": None}, "neither measures nor an error"),
        ({"measures": {"requests": None}}, "measures: "),
        ({"scenario": {"policy": "smetric", "rate": 5.0}}, "belongs to another scenario"),
        ({"scenario": {"policy": "nosuch", "rate": 4.0}}, "belongs to another scenario"),
        ({"scenario": {"rate": None}}, "scenario.rate"),
        ({"content": "0123456789abcdef"}, "belongs to another scenario"),
    ],
)
def test_an_edited_line_is_refused(
    tmp_path: Path, changed: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line that no sweep wrote is no result: sweep and report name file and line, and say what to do."""
    path = tmp_path / sweep.FILE
    sweep.run(SCENARIOS[:1], path, jobs=1, work=fake)
    line = path.read_text()
    path.write_text(line + json.dumps({**json.loads(line), **changed}) + "\n")
    with pytest.raises(sweep.SweepFailed, match=rf"sweep\.jsonl:2: .*{message}.*Delete the line"):
        sweep.run(SCENARIOS[:1], path, jobs=1, work=fake)
    assert cli.main(["report", str(path), "--out", str(tmp_path / "report")]) == 1
    assert "sweep.jsonl:2: " in capsys.readouterr().err


def test_blank_lines_are_passed_over(tmp_path: Path) -> None:
    """An editor's empty line is no result and no reason to refuse the others; lines still count from the first."""
    path = tmp_path / sweep.FILE
    done = sweep.run(SCENARIOS[:2], path, jobs=1, work=fake)
    path.write_text("\n" + path.read_text().replace("\n", "\n \n"))
    assert sweep.run(SCENARIOS[:2], path, jobs=1, work=fake) == done
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(sweep.SweepFailed, match=r"sweep\.jsonl:6: "):
        sweep.read(path)


def test_an_edited_trace_is_another_workload(tmp_path: Path) -> None:
    """Results of a recorded trace, or of a directory of such, are of its content: edited, they are made anew."""
    file, directory, path = tmp_path / "trace.jsonl", tmp_path / "traces", tmp_path / sweep.FILE
    directory.mkdir()
    for edited in (file, directory / "one.json"):
        asked = [replace(SCENARIOS[0], workload=str(file)), replace(SCENARIOS[0], workload=str(directory))]
        lengths = []
        for text in ("first", "first", "other"):
            for written in (file, directory / "one.json"):
                written.write_text(text if written == edited else "same")
            sweep.run(asked, path, jobs=1, work=fake)
            lengths.append(len(path.read_bytes().splitlines()))
        assert lengths[0] == lengths[1] < lengths[2]
    assert sweep.key(SCENARIOS[0]) == sweep.key(SCENARIOS[0], simulation.content(SCENARIOS[0].workload))


def test_the_keys_of_earlier_sweeps_hold() -> None:
    """A stored result's key is found again: a change of it would simulate hours anew."""
    stored = Scenario(policy="bailian", options={"weight": 0.3}, rate=4.75, seed=100, block_size=128, global_ratio=0.0)
    assert sweep.key(stored) == "f899009fe6cb63ea"
    assert sweep.key(replace(stored, options={"weight": 1})) == sweep.key(replace(stored, options={"weight": 1.0}))


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    """What cannot be written ends the sweep with the file's name; whole lines before it stay, and it goes on later."""
    path = tmp_path / sweep.FILE
    first = sweep.run(SCENARIOS[:1], path, jobs=1, work=fake)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, limits[1]))
    try:
        with pytest.raises(sweep.SweepFailed, match=r"sweep\.jsonl: File too large"):
            sweep.run(SCENARIOS[:2], path, jobs=1, work=fake)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sweep.read(path) == first
    assert len(sweep.run(SCENARIOS[:2], path, jobs=1, work=fake)) == len(path.read_bytes().splitlines()) == 2


def test_a_failed_simulation_is_a_line_and_is_tried_again(tmp_path: Path) -> None:
    """One that raises and one that takes its process with it end nothing; the next sweep tries them again."""
    path = tmp_path / sweep.FILE
    bad = [Scenario(workload="broken"), Scenario(workload="deadly"), *SCENARIOS]
    for _ in range(2):
        broken, deadly, *good = sweep.run(bad, path, jobs=2, work=fake)
        assert broken.error is not None
        assert broken.error.startswith("ValueError: no such workload")
        assert deadly.error is not None
        assert "exit code 3" in deadly.error
        assert all(result.measures for result in good)
    assert len(path.read_bytes().splitlines()) == 4 + 2 * 2


def test_rows_are_kept_where_asked(tmp_path: Path) -> None:
    """A run whose rows are wanted and missing is done again, to have them."""
    path, rows = tmp_path / sweep.FILE, tmp_path / "rows"
    sweep.run(SCENARIOS[:2], path, jobs=1, work=fake)
    for _ in range(2):
        sweep.run(SCENARIOS[:2], path, jobs=1, work=fake, keep={sweep.key(SCENARIOS[0]): rows})
        assert (rows / "run.json").exists()
    assert len(path.read_bytes().splitlines()) == 3


def test_two_sweeps_do_not_share_a_file(tmp_path: Path) -> None:
    """While one writes, another is refused."""
    path = tmp_path / sweep.FILE

    def nested(_: sweep.Result) -> None:
        with pytest.raises(sweep.SweepFailed, match="another sweep"):
            sweep.run(SCENARIOS[:1], path, jobs=1, work=fake)

    sweep.run(SCENARIOS[:1], path, jobs=1, work=fake, progress=nested)


def test_a_process_keeps_its_group() -> None:
    """Who has a group goes on with it; who is new gets one that nobody has; in the end the longest is shared."""
    queue = Queue([*"aaa", *"bb", "c"], group=str)
    asked = [(None, ""), (None, "a"), ("a", "b"), ("b", "a"), ("b", "ab"), ("c", "a"), ("a", "")]
    taken = [queue.take(kept, others) for kept, others in asked]
    assert [job and job.content for job in taken] == [*"ababca", None]


def test_jobs_run_side_by_side() -> None:
    """Even of one group: a process without work of its own takes of what is left."""
    done = list(spread(range(4), _who_slowly, group=lambda _: "one", processes=2))
    assert sorted(job for job, _ in done) == [0, 1, 2, 3]
    assert len({who for _, who in done if not isinstance(who, Failed)}) == 2


def _who_slowly(_: int) -> int:
    time.sleep(0.5)
    return os.getpid()


def test_an_interruption_keeps_what_is_done(tmp_path: Path) -> None:
    """SIGINT ends a sweep and its processes at once; lines written before it stay."""
    program = f"""
from pathlib import Path
from loadgen.simulation.scenario import Arrivals, Scenario
from loadgen.simulation.sweeps import sweep
from tests.loadgen.simulation.sweeps.test_sweep import fake
if __name__ == "__main__":
    asked = [Scenario(workload="quick"), Scenario(workload="slow")]
    heard = lambda _: print("done", flush=True)
    sweep.run(asked, Path({str(tmp_path)!r}) / sweep.FILE, jobs=1, work=fake, progress=heard)
"""
    script = tmp_path / "program.py"
    script.write_text(program)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        assert process.returncode != 0
    assert [result.scenario.workload for result in sweep.read(tmp_path / sweep.FILE)] == ["quick"]


def test_every_combination_is_asked_for() -> None:
    """Rates, ratios, fields, seeds and policies multiply; fields have their types, the service level's too."""
    found = scenarios(
        ["smetric:overload=3", "bailian"],
        "4,8",
        "0,4.6",
        2,
        ["fetch=async", "slo.tpot_s=0.05,0.1", "local_tokens=none"],
    )
    assert len(found) == 2 * 2 * 2 * 2 * 2
    assert len({sweep.key(scenario) for scenario in found}) == len(found)
    assert found[0].options == {"overload": 3.0}
    assert found[0].fetch is Fetch.ASYNC
    assert {scenario.slo.tpot_s for scenario in found} == {0.05, 0.1}
    assert sweep.label(found[0]) == "smetric overload=3"
    assert sweep.label(replace(found[0], options={"overload": 2.0})) == "smetric"


@pytest.mark.parametrize(
    ("policies", "rates", "sets", "message"),
    [
        (["nosuch"], "4", [], "there is no such policy"),
        (["smetric:over=3"], "4", [], "smetric has overload"),
        (["smetric:overload=x"], "4", [], "--policy smetric:overload=x: NAME=NUMBER is expected"),
        (["smetric"], "fast", [], "--rate fast: Expected `float`"),
        (["smetric"], "4", ["fetch=never"], "--set fetch never: Invalid enum value 'never'"),
        (["smetric"], "4", ["nosuch=1"], "with a field of"),
        (["smetric"], "4", ["instances"], "FIELD=VALUE"),
        (["smetric"], "nan", [], "--rate nan: a positive number is expected"),
        (["smetric"], "4,-1", [], r"--rate -1\.0: a positive number"),
        (["bailian:weight=nan"], "4", [], "--policy bailian:weight=nan: NAME=NUMBER is expected"),
        (["bailian:weight=-1"], "4", [], r"--policy bailian:weight=-1\.0: a number of 0 or more"),
        (["smetric", "bailian:weight=inf"], "4", [], "--policy bailian:weight=inf: .*large one, such as 1e9"),
        (["smetric"], "4", ["slo.tpot_s=nan"], "--set slo.tpot_s=nan: a positive number"),
        (["smetric"], "4", ["slo.ttft_s=inf"], "--set slo.ttft_s=inf: 0 or more"),
        (["smetric"], "4", ["instances=0"], "--set instances=0: a positive number"),
        (["smetric"], "4", ["warmup_s=-5"], r"--set warmup_s=-5\.0: 0 or more"),
        (["smetric"], "4", ["model=x"], "--set model=x: one of 30b-h20"),
        (["smetric"], "4", ["workload=/nonexistent"], "--set workload=/nonexistent: neither a file nor a profile"),
        (["smetric"], "4", ["block_size=4096", "local_tokens=64"], "block of 4096 tokens does not fit .* 64 tokens"),
    ],
)
def test_what_cannot_be_read_is_said(policies: list[str], rates: str, sets: list[str], message: str) -> None:
    """A bad option is named, with what was expected."""
    with pytest.raises(CommandError, match=message):
        scenarios(policies, rates, "4.6", 1, sets)


def result(policy: str, rate: float, seed: int, tps: float, ratio: float = 4.6) -> sweep.Result:
    """As a sweep has it."""
    scenario = Scenario(policy=policy, rate=rate, seed=seed, global_ratio=ratio)
    return sweep.Result(key=sweep.key(scenario), scenario=scenario, measures=_json(measures(tps)))


def test_a_peak_is_compared_seed_by_seed() -> None:
    """The peak is the rate with the best mean; seeds pair even where policies peak at different rates."""
    values = {("smetric", 4.0): (100, 120), ("smetric", 8.0): (110, 130), ("lmetric", 4.0): (100, 118)}
    values["lmetric", 8.0] = (10, 200)
    found = curves(result(p, rate, seed, tps) for (p, rate), pair in values.items() for seed, tps in enumerate(pair))
    smetric, lmetric = found["smetric"], found["lmetric"]
    assert smetric.peak(lambda m: m.tps_slo) == 8.0
    assert lmetric.peak(lambda m: m.tps_slo) == 4.0
    difference = more(smetric.at(8.0, lambda m: m.tps_slo), lmetric.at(4.0, lambda m: m.tps_slo))
    assert math.isclose(difference.mean, (0.1 + 12 / 118) / 2)
    assert difference.clear


def test_settings_name_what_varies() -> None:
    """Results are split by the fields that differ, and by those alone."""
    found = settings([result("smetric", 4.0, 0, 1.0, ratio) for ratio in (0.0, 4.6)])
    assert [*found] == [(("global_ratio", "0.0"),), (("global_ratio", "4.6"),)]
    assert [*settings([result("smetric", 4.0, 0, 1.0)])] == [()]


def test_the_summary_has_a_row_a_policy() -> None:
    """A setting's table gives the peak and the paired difference to the first policy."""
    results = [result(p, 4.0, s, tps) for p, tps in (("smetric", 100), ("lmetric", 80)) for s in (0, 1, 2)]
    (table,) = tables(results)
    cells = [list(column.cells) for column in table.columns]
    assert cells[0] == ["smetric", "lmetric"]
    assert cells[1] == ["100 ± 0", "80 ± 0"]
    assert cells[-1] == ["", "-20.0% ± 0.0%"]


@pytest.mark.parametrize(("seeds", "values", "noise"), [(1, [80], True), (2, [80, 81], True), (3, [80, 130, 80], True)])
def test_what_few_seeds_say_is_noise(seeds: int, values: list[int], noise: bool) -> None:
    """Fewer than three pairs tell no difference, nor does an interval that holds zero."""
    results = [result("smetric", 4.0, seed, 100) for seed in range(seeds)]
    results += [result("lmetric", 4.0, seed, tps) for seed, tps in enumerate(values)]
    (table,) = tables(results)
    assert list(table.columns[-1].cells)[-1].endswith("(noise)") == noise


def test_what_was_not_quite_as_asked_is_noted() -> None:
    """What no cache could hold, and requests that arrive at another rate than was offered: how many, and how far."""
    good = result("smetric", 4.0, 0, 100)
    assert good.measures is not None
    measures = good.measures | {"requests_per_s": 4.2}
    fine = msgspec.structs.replace(good, measures=measures)
    assert list(notes([fine])) == []
    cut = msgspec.structs.replace(fine, left_out=LeftOut(0.05, 0.31))
    slow = msgspec.structs.replace(good, measures=measures | {"requests_per_s": 2.8})
    left, arriving = notes([fine, cut, slow])
    assert "1 of 3" in left
    assert "31.0% of the tokens" in left
    assert "1 of 3" in arriving
    assert "-30%" in arriving


def test_a_recording_runs_once_as_it_was_recorded(tmp_path: Path) -> None:
    """Without --rate: its own arrivals and rate, and no seeds, which would change nothing; with --rate, both."""
    file = tmp_path / "trace.jsonl"
    lines = [
        f'{{"timestamp": {2_000 * number}, "input_length": 512, "output_length": 1, "hash_ids": [{number}]}}'
        for number in range(31)
    ]
    file.write_text("\n".join(lines) + "\n")
    sets = [f"workload={file}"]
    once = scenarios(["smetric", "lmetric"], None, "0", 5, sets)
    assert [(one.policy, one.seed) for one in once] == [("smetric", 0), ("lmetric", 0)]
    assert {(one.arrivals, one.dispatch) for one in once} == {(Arrivals.RECORDED, Dispatch.TRACE)}
    assert {(one.warmup_s, one.measure_s) for one in once} == {(20.0, 41.0)}
    assert once[0].rate == pytest.approx(31 / 60)
    drawn = scenarios(["smetric"], "0.5", "0", 2, sets)
    assert {(one.arrivals, one.seed, one.rate) for one in drawn} == {(Arrivals.DRAWN, seed, 0.5) for seed in (0, 1)}
    (chosen,) = scenarios(["smetric"], None, "0", 1, [*sets, "measure_s=10", "warmup_s=5", "dispatch=think"])
    assert (chosen.warmup_s, chosen.measure_s, chosen.dispatch) == (5.0, 10.0, Dispatch.THINK)


def test_the_command_ends_with_1_when_a_simulation_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is shown, the rest summed up, and the results stay."""
    good, bad = result("smetric", 4.0, 0, 100), sweep.Result(key="k", scenario=Scenario(), error="ValueError: no")
    monkeypatch.setattr(sweep, "run", lambda *_, **__: [good, bad])
    assert cli.main(["sweep", "--out", str(tmp_path), "--rate", "4"]) == 1
    out = capsys.readouterr().out
    assert "failed: smetric, seed 0: ValueError: no" in out
    assert "100" in out


def test_the_command_simulates_and_sums_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two policies on one real, small cluster: same requests, a table, and nothing to do the second time."""
    arguments = ["sweep", "--out", str(tmp_path), "--rate", "0.5", "--seeds", "1", "--jobs", "1"]
    arguments += ["--policy", "smetric", "--policy", "least-loaded", "--set", "instances=2"]
    arguments += ["--set", "warmup_s=60", "--set", "measure_s=240", "--set", "block_size=128"]
    assert cli.main(arguments) == 0
    first, second = sweep.read(tmp_path / sweep.FILE)
    assert first.measures is not None
    assert second.measures is not None
    assert first.measures["requests"] > 20
    assert first.measures["local"] > second.measures["local"]
    assert cli.main(arguments) == 0
    assert sweep.read(tmp_path / sweep.FILE) == [first, second]
    assert "least-loaded" in capsys.readouterr().out


def test_a_simulation_without_requests_has_failed() -> None:
    """Nothing due in the window is no measurement of nothing: the cause is said."""
    asked = Scenario(workload="chat", rate=1.0, instances=1, warmup_s=0.0, measure_s=1e-9)
    with pytest.raises(simulation.ImpossibleScenario, match="no request is due in the 1e-09 s"):
        sweep.simulated(asked, None)
