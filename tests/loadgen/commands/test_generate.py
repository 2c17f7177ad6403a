"""`loadgen generate`: what it writes, and what it says of bad wishes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from loadgen.cli import main
from loadgen.workloads.profiles import PROFILES
from loadgen.workloads.synthetic import generate
from loadgen.workloads.traces import load


def run(*arguments: str | Path) -> int:
    return main(["generate", *map(str, arguments)])


def test_it_writes_what_it_drew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file, packed or not, holds the trace of these arguments; the summary counts it."""
    drawn = generate(PROFILES["chat"], rate=2, seconds=100, seed=7)
    for name in ("chat.jsonl", "chat.jsonl.gz"):
        path = tmp_path / name
        assert run("--profile", "chat", "--rate", 2, "--seconds", 100, "--seed", 7, "-o", path) == 0
        read = load(path)
        assert [(r.id, r.blocks, r.parent) for r in read.requests] == [
            (r.id, r.blocks, r.parent) for r in drawn.requests
        ]
        assert read.facts == drawn.facts
        assert f"{len(drawn.requests)} requests of " in capsys.readouterr().out


def test_text_goes_with_it(tmp_path: Path) -> None:
    """--text writes a line a request: its id, its new messages, the length of its reply."""
    path, text = tmp_path / "chat.jsonl", tmp_path / "text.jsonl"
    assert run("--profile", "chat", "--sessions", 5, "--rate", 1, "-o", path, "--text", text) == 0
    lines = [msgspec.json.decode(line) for line in text.read_bytes().splitlines()]
    requests = load(path).requests
    assert [line["request_id"] for line in lines] == [request.id for request in requests]
    assert [line["max_tokens"] for line in lines] == [request.output for request in requests]
    assert all(line["messages"][-1]["role"] == "user" for line in lines)


def test_recorded_sessions_get_another_rate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--trace samples a file's sessions; what is too long is left out and counted."""
    recorded, arranged = tmp_path / "recorded.jsonl", tmp_path / "arranged.jsonl"
    assert run("--profile", "paper-trace-1", "--sessions", 200, "-o", recorded) == 0
    assert run("--trace", recorded, "--rate", 1, "--seconds", 600, "--max-tokens", 60_000, "-o", arranged) == 0
    assert max(request.input + request.output for request in load(arranged).requests) <= 60_000
    assert "left out: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--profile", "chat", "--rate", "-1"], "rate -1: expected a positive number"),
        (["--profile", "chat", "--seconds", "0.0001"], "nothing arrived"),
        (["--profile", "claude-code", "--context", "9000"], "cannot hold the system prompt of 16799 tokens"),
        (["--trace", "missing.jsonl"], "missing.jsonl: No such file or directory"),
        (["--trace", "missing.jsonl", "--sessions", "3"], "are for profiles"),
        (["--profile", "chat", "--sessions", "1", "-o", "missing/x.jsonl"], "missing/x.jsonl: No such file"),
        (["--profile", "chat", "--sessions", "1", "--text", "t", "--model-dir", "no"], "no/tokenizer.json: No such"),
        (["--profile", "chat", "--sessions", "1", "--text", "no/t"], "no/t: No such file"),
        (["--profile", "chat", "--sessions", "1", "-o", "/dev/full"], "/dev/full: No space left on device"),
        (["--profile", "chat", "--sessions", "1", "--text", "/dev/full"], "/dev/full: No space left on device"),
        (["--profile", "chat", "--sessions", "1", "--text", "./x.jsonl"], "--out and --text are one file, x.jsonl"),
        (["--trace", "x.jsonl"], "--trace and --out are one file, x.jsonl"),
        (["--profile", "chat", "--max-tokens", "0"], "--max-tokens 0: expected a positive number"),
        (["--profile", "chat", "--sessions", "1", "--max-tokens", "1"], "all requests have more than --max-tokens 1"),
        (["--trace", "missing.jsonl", "--block-size", "0"], "are for profiles"),
    ],
)
def test_bad_wishes_are_explained(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What cannot be done is one line that says why, and exit code 1."""
    monkeypatch.chdir(tmp_path)
    out = [] if "-o" in arguments else ["-o", "x.jsonl"]
    assert run(*arguments, *out) == 1
    assert words in capsys.readouterr().err


def test_nothing_is_written_where_the_text_cannot_be(tmp_path: Path) -> None:
    """What --text needs is looked at first: its model, and whether its file can be written."""
    out = tmp_path / "x.jsonl"
    for wish in (["--text", tmp_path / "t", "--model-dir", tmp_path], ["--text", tmp_path / "no" / "t"]):
        assert run("--profile", "chat", "--sessions", 1, "-o", out, *wish) == 1
        assert list(tmp_path.iterdir()) == []


def test_a_hard_link_is_the_same_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two names of one file are told by the file, and it is left as it was."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("kept")
    two.hardlink_to(one)
    assert run("--profile", "chat", "--sessions", 1, "-o", one, "--text", two) == 1
    assert "are one file" in capsys.readouterr().err
    assert one.read_text() == "kept"


def test_an_unknown_profile_is_answered_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage: exit code 2 and the choice there is."""
    with pytest.raises(SystemExit) as ended:
        run("--profile", "nope", "-o", "x")
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert all(name in error for name in PROFILES)
