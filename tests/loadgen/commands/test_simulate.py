"""`loadgen simulate`: a summary, a run to keep, and one line where it cannot be."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from loadgen.cli import main
from loadgen.results.records import CSV, Slo, read_info, read_rows

SHORT = ["--rate", "1", "--warmup", "10", "--measure", "30", "--instances", "4"]


def simulate(*arguments: str) -> int:
    return main(["simulate", *arguments])


def test_it_sums_up_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --out nothing is written; the summary says what was asked and what came of it."""
    assert simulate("paper-trace-1", *SHORT, "--policy", "bailian", "--option", "weight=0.5") == 0
    said = capsys.readouterr()
    for text in ("bailian weight=0.5, seed 0, 1 requests/s offered", "TPS within SLO", "reuse", "TTFT", "TPOT"):
        assert text in said.out
    assert not said.err


def test_it_keeps_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--out holds what was run and a row a request; --export the same rows as CSV."""
    out = tmp_path / "run"
    arguments = ["--seed", "3", "--slo-tpot", "0.1", "--out", str(out), "--export", "csv"]
    assert simulate("paper-trace-1", *SHORT, *arguments) == 0
    info, rows = read_info(out), list(read_rows(out))
    assert info.complete
    assert (info.kind, info.policy, info.seed, info.window) == ("simulate", "smetric", 3, (10.0, 40.0))
    assert info.settings["requests"] == len(rows) > 10
    assert info.settings["slo_tpot_s"] == 0.1
    assert info.settings["slo_ttft_s"] == Slo().ttft_s
    due = sum(10.0 <= row.due_s < 40.0 for row in rows)
    assert f"requests        {due} in 30 s" in capsys.readouterr().out
    with (out / CSV).open(newline="") as file:
        assert [line["request"] for line in csv.DictReader(file)] == [row.request for row in rows]


def test_equal_arguments_give_equal_runs(tmp_path: Path) -> None:
    """Rows are the same, byte for byte; another seed gives others."""
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert simulate("paper-trace-1", *SHORT, "--seed", seed, "--out", str(tmp_path / name)) == 0
    rows = {name: (tmp_path / name / "requests.jsonl").read_bytes() for name in "abc"}
    assert rows["a"] == rows["b"] != rows["c"]


def test_a_trace_runs_as_it_was_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --rate: its own times and its own rate; what was left out, and a window that is busier than the whole,
    are said here and in run.json."""
    file = tmp_path / "mooncake.jsonl"
    times = [*range(0, 40, 4), *range(40, 60)]
    lines = [
        f'{{"timestamp": {1000 * at}, "input_length": {3072 if at == 8 else 1536}, "output_length": 10, "hash_ids": '
        f"{[at, at + 1000, at + 2000, *([at + 3000, at + 4000, at + 5000] if at == 8 else [])]}}}"
        for at in times
    ]
    file.write_text("\n".join(lines) + "\n")
    out = tmp_path / "run"
    assert simulate(str(file), "--instances", "2", "--local-tokens", "2560", "--out", str(out)) == 0
    said = capsys.readouterr().out
    assert "0.5085 requests/s as recorded" in said
    assert "left out        3.3% of the requests, 6.4% of the tokens" in said
    assert "+" in said[said.index("arriving") :].splitlines()[0]
    assert [row.due_s for row in read_rows(out)] == [at for at in times if at != 8]
    info = read_info(out)
    assert (info.settings["arrivals"], info.settings["dispatch"]) == ("recorded", "trace")
    assert info.settings["left_out_requests"] == pytest.approx(1 / 30)


def test_a_trace_is_resampled_to_the_rate(tmp_path: Path) -> None:
    """A file is read by whatever reader knows it, and its sessions arrive at the rate that was asked for."""
    file = tmp_path / "mooncake.jsonl"
    lines = [
        f'{{"timestamp": {1000 * number}, "input_length": 1536, "output_length": 10, "hash_ids": [{number}, '
        f"{number + 1000}, {number + 2000}]}}"
        for number in range(50)
    ]
    file.write_text("\n".join(lines) + "\n")
    out = tmp_path / "run"
    assert simulate(str(file), *SHORT, "--dispatch", "trace", "--out", str(out)) == 0
    assert {row.input for row in read_rows(out)} == {1536}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl"),
        (["paper-trace-1", "--rate", "0"], "--rate 0.0: a positive number is expected"),
        (["paper-trace-1", "--rate", "nan"], "--rate nan: a positive number is expected"),
        (["paper-trace-1", "--measure", "-1"], "--measure -1.0: a positive number is expected"),
        (["paper-trace-1", "--instances", "0"], "--instances 0: a positive number is expected"),
        (["paper-trace-1", "--global-ratio", "-1"], "--global-ratio -1.0: 0 or more is expected"),
        (["paper-trace-1", "--global-ratio", "nan"], "--global-ratio nan: 0 or more is expected"),
        (["paper-trace-1", "--option", "weight=1"], "--option weight=1: policy smetric has overload"),
        (["paper-trace-1", "--option", "overload=much"], "--option overload=much: NAME=NUMBER is expected"),
        (["paper-trace-1", "--option", "overload=nan"], "--option overload=nan: NAME=NUMBER is expected"),
        (["paper-trace-1", *SHORT, "--block-size", "24"], "block size 24 is no multiple of the trace's"),
        (
            ["paper-trace-1", *SHORT, "--local-tokens", "2000"],
            "cache of 1984 tokens: raise --local-tokens",
        ),
        (["paper-trace-1", "--policy", "bailian", "--option", "weight=inf"], "--option weight=inf: a finite"),
        (
            ["paper-trace-1", "--policy", "bailian", "--option", "weight=-1"],
            "--option weight=-1.0: a number of 0",
        ),
        (["paper-trace-1", "--block-size", "4096", "--local-tokens", "64"], "a block of 4096 tokens does not fit"),
        (
            ["paper-trace-1", "--instances", "1", "--warmup", "0", "--measure", "1e-9"],
            "no request is due in the 1e-09",
        ),
        (["paper-trace-1", "--export", "csv"], "--export needs --out"),
        (["paper-trace-1", "--slo-tpot", "-1"], "--slo-tpot -1.0: a positive number is expected"),
    ],
)
def test_what_cannot_be_is_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, and one line on stderr that says what is wrong."""
    assert simulate(*arguments) == 1
    streams = capsys.readouterr()
    assert said in streams.err
    assert len(streams.err.strip().splitlines()) == 1
    assert not streams.out


def test_a_trace_whose_blocks_are_too_large_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cache smaller than one block of the trace is the cause, not the trace's requests."""
    file = tmp_path / "trace.jsonl"
    file.write_text('{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}\n')
    assert simulate(str(file), *SHORT, "--local-tokens", "64") == 1
    assert "a block of 512 tokens does not fit an instance's cache of 64 tokens" in capsys.readouterr().err


def test_what_a_short_run_cannot_tell_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    """Less than a minute has no load a minute: the summary never says nan."""
    assert simulate("paper-trace-1", *SHORT) == 0
    out = capsys.readouterr().out
    assert "instance - in tokens a minute" in out
    assert "nan" not in out


def test_a_broken_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a trace that is cut off, the error has file and line."""
    file = tmp_path / "cut.jsonl"
    file.write_text('{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}\n{"timestamp": 1, "inp')
    assert simulate(str(file), *SHORT) == 1
    assert f"{file}:2" in capsys.readouterr().err


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """OUT that is a file is refused with its name."""
    (tmp_path / "taken").write_text("")
    assert simulate("paper-trace-1", *SHORT, "--out", str(tmp_path / "taken")) == 1
    assert "taken" in capsys.readouterr().err
