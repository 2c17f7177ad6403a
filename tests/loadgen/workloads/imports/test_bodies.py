"""Request bodies that were kept become a workload: lengths of the model's tokens, and nothing of what was said."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

import pytest

from loadgen.engine.options import MODEL_DIR
from loadgen.engine.tokenizer import Tokens
from loadgen.workloads.imports import bodies
from loadgen.workloads.trace import Trace, common
from loadgen.workloads.traces import own_jsonl
from loadgen.workloads.traces.lines import TraceError

SYSTEM = {"role": "system", "content": "secret plans of the house " * 200}


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return Tokens(MODEL_DIR)


def session(name: str, turns: int) -> list[list[dict[str, str]]]:
    """Messages of each request."""
    messages = [SYSTEM, {"role": "user", "content": f"{name} begins with this question " * 20}]
    found = [list(messages)]
    for turn in range(1, turns):
        messages.append({"role": "assistant", "content": f"the answer of {name} in turn {turn} " * 10})
        messages.append({"role": "user", "content": f"{name} goes on, {turn} " * 20})
        found.append(list(messages))
    return found


def read(path: Path, tokens: Tokens) -> tuple[Trace, int]:
    return bodies.read(path, MODEL_DIR, tokens.encode)


def lines(path: Path, made: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in made), "utf-8")
    return path


def test_sessions_and_replies(tmp_path: Path, tokens: Tokens) -> None:
    """Who goes on from whom, with the reply's length from the next request; blocks are shared to the block."""
    asked = [body for pair in zip(session("one", 4), session("two", 4), strict=True) for body in pair]
    made: list[dict[str, object]] = [{"time": 100.0 + at, "body": {"messages": body}} for at, body in enumerate(asked)]
    made[3]["body"] = json.dumps(made[3]["body"])  # a body kept as its text
    trace, left_out = read(lines(tmp_path / "bodies.jsonl", made), tokens)
    assert left_out == 0
    assert [request.turn for request in trace.requests] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [request.parent for request in trace.requests] == [None, None, "0", "1", "2", "3", "4", "5"]
    reply = len(tokens.encode("the answer of one in turn 1 " * 10))
    assert trace.requests[0].output == pytest.approx(reply, abs=6)  # the template's marks come to it
    first, other, second = trace.requests[:3]
    assert common(first.blocks, second.blocks) == first.input // 16
    assert common(first.blocks, other.blocks) == pytest.approx(len(tokens.encode(SYSTEM["content"])) // 16, abs=1)


def test_nothing_that_was_said_is_written(tmp_path: Path, tokens: Tokens) -> None:
    """Lengths, times and small numbers."""
    made: list[dict[str, object]] = [{"time": "2026-12-01T00:00:00Z", "body": {"messages": session("x", 1)[0]}}]
    trace, _ = read(lines(tmp_path / "bodies.jsonl", made), tokens)
    file = io.BytesIO()
    own_jsonl.write(trace, file)
    assert b"secret" not in file.getvalue()


def test_a_folder_of_bodies(tmp_path: Path, tokens: Tokens) -> None:
    """A file is a bare body or an object as in JSONL; what cannot be rendered is counted."""
    first, second = session("one", 2)
    later = time.time() + 9  # than the file's own time
    (tmp_path / "1.json").write_text(json.dumps({"messages": first}), "utf-8")
    (tmp_path / "2.json").write_text(
        json.dumps({"time": later, "output_tokens": 7, "duration_s": 2, "body": {"messages": second}}), "utf-8"
    )
    (tmp_path / "3.json").write_text(json.dumps({"messages": "none"}), "utf-8")
    (tmp_path / "4.json").write_text(json.dumps({"time": later, "path": "/v1/embeddings", "body": {}}), "utf-8")
    trace, left_out = read(tmp_path, tokens)
    assert left_out == 2
    assert [(request.turn, request.parent) for request in trace.requests] == [(0, None), (1, "0")]
    assert (trace.requests[1].output, trace.requests[1].duration_s) == (7, 2)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "not valid JSON"),
        ('{"body": {}}', "time"),
        ('{"time": "x", "body": {"messages": [{"role": "user", "content": "y"}]}}', "time"),
        ("", "no requests"),
    ],
)
def test_what_is_no_request_is_named(tmp_path: Path, tokens: Tokens, text: str, named: str) -> None:
    """With the line, and what was expected."""
    (tmp_path / "bodies.jsonl").write_text(text, "utf-8")
    with pytest.raises(TraceError, match=named):
        read(tmp_path / "bodies.jsonl", tokens)
