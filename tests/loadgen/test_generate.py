"""`loadgen generate`: what it writes, and what it says of bad wishes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from loadgen.cli import main
from loadgen.profiles import PROFILES
from loadgen.synthetic import generate
from loadgen.traces import load


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


def test_an_unknown_profile_is_answered_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage: exit code 2 and the choice there is."""
    with pytest.raises(SystemExit) as ended:
        run("--profile", "nope", "-o", "x")
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert all(name in error for name in PROFILES)
