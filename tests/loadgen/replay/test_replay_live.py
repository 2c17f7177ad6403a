"""The replay as a command, through a real Envoy with ext_proc over simulated engines."""

from __future__ import annotations

import argparse
import csv
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from loadgen.command_error import CommandError
from loadgen.commands import replay as command
from loadgen.results.records import CSV, read_info, read_rows
from loadgen.stack.processes import free_port
from loadgen.stack.stack import Engine, Stack
from loadgen.workloads.trace import Runs, Trace, TraceRequest, Trigger, length
from loadgen.workloads.traces import own_jsonl

BLOCK = 16
SYSTEM = 40 * BLOCK  # tokens, shared by all sessions
OUTPUT = 24
OPENING = 480
ADDED = 200


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(3, engine_options=["--profile", "demo"], cluster={"prompt_block_bytes": 64}) as stack:
        yield stack


def session(
    number: int, turns: int, *, compacted: int = -1, forked: int = -1, output: int = OUTPUT
) -> list[TraceRequest]:
    """A session of so many turns; `compacted` drops the history, after `forked` another session goes on from it."""
    made: list[TraceRequest] = []
    forks: list[TraceRequest] = []
    name, base = f"s{number}", (number + 1) * 10_000
    tokens, turn, blocks = SYSTEM, 0, ((0, SYSTEM // BLOCK),)
    for index in range(turns):
        if index == compacted:
            tokens, turn, base, blocks = SYSTEM, 0, base + 1_000, ((0, SYSTEM // BLOCK),)
        parent = made[-1].id if made else None
        text = ADDED if turn else OPENING
        made.append(
            _request(f"{name}/{index}", name, turn, tokens, text, grown(blocks, tokens + text, base), parent, output)
        )
        tokens += text + output
        blocks = grown(blocks, tokens, base)
        turn += 1
        if index == forked:
            child = grown(blocks, tokens + ADDED, base + 2_000)
            forks.append(_request(f"{name}.1/0", f"{name}.1", turn, tokens, ADDED, child, made[-1].id, output))
    return made + forks


def grown(blocks: Runs, tokens: int, base: int) -> Runs:
    """The names of a prompt of so many tokens that goes on from the blocks with names of its own."""
    have = length(blocks)
    return (*blocks, (base + have, tokens // BLOCK - have))


def _request(
    name: str, owner: str, turn: int, history: int, text: int, blocks: Runs, parent: str | None, output: int
) -> TraceRequest:
    return TraceRequest(
        id=name,
        session=owner,
        turn=turn,
        arrival_s=0.0,
        input=history + text,
        output=output,
        blocks=blocks,
        parent=parent,
        trigger=Trigger.COMPACTION if turn == 0 and parent is not None else Trigger.AGENT,
        gap_s=None if parent is None else 0.05,
        system=SYSTEM,
        history=history if turn else 0,
    )


def written(path: Path, requests: list[TraceRequest]) -> Path:
    """A trace file of the requests."""
    with path.open("wb") as file:
        own_jsonl.write(Trace("live", BLOCK, requests), file)
    return path


def run(*arguments: str | Path) -> int:
    """The command, in this process."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(argument) for argument in arguments]))


def start(stack: Stack, *arguments: str | Path) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "loadgen", "replay", "--url", stack.url, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_busy(engines: Sequence[Engine], requests: int) -> None:
    """Until so many requests run on the engines together."""
    deadline = time.monotonic() + 30
    while sum(engine.metric("vllm:num_requests_running") for engine in engines) < requests:
        assert time.monotonic() < deadline, "the engines have nothing to do"
        time.sleep(0.02)


def test_a_workload_comes_through(stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing fails; prompts and replies have the workload's lengths; follow-ups and forks find all that their parent
    left in the cache, compactions the system prompt; the log's decisions are in the rows."""
    requests = [one for number in range(4) for one in session(number, 4, compacted=3, forked=1)]
    trace = written(tmp_path / "trace.jsonl", requests)
    out = tmp_path / "out"
    options = ("--out", out, "--access-log", stack.access_log_path, "--export", "csv", "--policy", "smetric")
    assert run(trace, "--url", stack.url, *options) == 0
    rows = {row.request: row for row in read_rows(out)}
    assert len(rows) == len(requests) == 20
    for request in requests:
        row = rows[request.id]
        assert row.error is None
        assert row.produced == row.output == request.output
        assert abs(row.input - request.input) <= 1
        assert row.reason is not None
        assert row.load is not None
        assert row.local is not None
        if request.turn and request.parent:
            before = rows[request.parent]
            assert row.instance == before.instance
            left = (before.input + before.produced - 1) // BLOCK * BLOCK
            assert row.local >= left
            assert row.predicted is not None
            assert row.predicted >= 0.9 * left
        elif request.parent:
            assert row.local >= SYSTEM - 2 * BLOCK
    info = read_info(out)
    assert (info.kind, info.policy, info.complete) == ("replay", "smetric", True)
    assert set(info.instances) == {row.instance for row in rows.values()}
    with (out / CSV).open(newline="") as file:
        assert [line["request"] for line in csv.DictReader(file)] == list(rows)
    said = capsys.readouterr().out
    assert "20, 0 failed" in said
    assert "first_turn" in said


def test_an_engine_killed_in_the_middle(stack: Stack, tmp_path: Path) -> None:
    """What an engine takes with it are failed rows; the run goes on, its rows are complete, and the exit code is 1."""
    requests = [one for number in range(12) for one in session(number, 2, output=250)]
    trace = written(tmp_path / "trace.jsonl", requests)
    victim = stack.engines[0]
    process = start(stack, trace, "--out", tmp_path / "out")
    try:
        wait_busy([victim], 1)
        victim.kill()
        said, complaints = process.communicate(timeout=60)
    finally:
        process.kill()
        victim.restart()
        stack.wait_healthy(3)
    assert process.returncode == 1, complaints
    rows = list(read_rows(tmp_path / "out"))
    assert len(rows) == len(requests)
    failed = [row for row in rows if not row.ok]
    assert failed
    assert any(row.ok and row.turn == 1 for row in rows)
    assert {row.instance for row in failed if row.instance is not None} == {victim.address}
    assert f"{len(rows)}, {len(failed)} failed" in said
    assert "parent failed" in said
    assert read_info(tmp_path / "out").complete


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c(stack: Stack, tmp_path: Path, number: signal.Signals) -> None:
    """Interrupted, the replay ends at once with 130, keeps the rows of all that was sent, and says that it is
    incomplete."""
    requests = [one for number in range(4) for one in session(number, 3, output=2000)]
    trace = written(tmp_path / "trace.jsonl", requests)
    process = start(stack, trace, "--out", tmp_path / "out", "--export", "csv")
    try:
        wait_busy(stack.engines, 4)
        process.send_signal(number)
        said, complaints = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130
    assert complaints == ""
    assert "interrupted" in said
    rows = list(read_rows(tmp_path / "out"))
    assert sorted((row.request, row.error) for row in rows) == [(f"s{n}/0", "unfinished") for n in range(4)]
    assert not read_info(tmp_path / "out").complete
    assert (tmp_path / "out" / CSV).exists()


def test_nobody_at_the_gateway(tmp_path: Path) -> None:
    """A gateway that is not there is said to be so, before anything is written."""
    trace = written(tmp_path / "trace.jsonl", session(0, 1))
    with pytest.raises(CommandError, match=r"gateway cannot be reached: http://127\.0\.0\.1:\d+: "):
        run(trace, "--url", f"http://127.0.0.1:{free_port()}", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
