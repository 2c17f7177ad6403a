"""Envoy's access log becomes a workload: who goes on from whom to a block, who begins alike to within half."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from extproc.base import blocks
from extproc.routing.digests import told
from extproc.routing.query import Query
from loadgen.workloads.imports.access_log import read
from loadgen.workloads.trace import Fact, common
from loadgen.workloads.traces.lines import TraceError

BEGAN = datetime(2026, 12, 1, tzinfo=UTC)
SYSTEM = Random(1).randbytes(220 * 256)  # 220 blocks that all sessions share


def line(prompt: bytes, history: int, turn: int, at_s: float, duration_ms: float = 500) -> dict[str, object]:
    """As envoy/envoy.yaml writes it: numbers of the decision are doubles."""
    query = Query(turn=turn, history=history, prompt=len(prompt), chain=blocks.extend(prompt, blocks.root("pool")))
    decision = {"turn": float(turn), "prompt_bytes": float(len(prompt)), "history_bytes": float(history)}
    when = (BEGAN + timedelta(seconds=at_s)).isoformat().replace("+00:00", "Z")
    return {"time": when, "duration_ms": duration_ms, "status": 200, "smetric": decision | told(query, 256)}


def session(seed: int, turns: int, begin_s: float) -> list[dict[str, object]]:
    """Requests of a session, each with the one before, a reply of 1 KB and 3 KB of new text."""
    random = Random(seed)
    prompt, history, found = SYSTEM + random.randbytes(2_000), 0, []
    for turn in range(turns):
        found.append(line(prompt, history, turn, begin_s + turn))
        history = len(prompt) + 1_000
        prompt += random.randbytes(1_000) + random.randbytes(3_000)
    return found


def written(path: Path, lines: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in lines), "utf-8")
    return path


def test_sessions_are_found_and_share_their_blocks(tmp_path: Path) -> None:
    """Twelve sessions with one system prompt, mixed: each request goes on from the right one, and shares it whole."""
    lines = [each for seed in range(12) for each in session(seed, 5, seed / 10)]
    Random(3).shuffle(lines)
    trace, left_out = read(written(tmp_path / "access.log", lines))
    assert left_out == 0
    assert len({request.session for request in trace.requests}) == 12
    assert {Fact.BLOCKS, Fact.INFERRED_SESSIONS, Fact.DURATIONS, Fact.GAPS} <= trace.facts
    by_id = {request.id: request for request in trace.requests}
    for request in trace.requests:
        if request.turn == 0:
            assert request.parent is None
            continue
        before = by_id[str(request.parent)]
        assert (before.session, before.turn) == (request.session, request.turn - 1)
        assert common(before.blocks, request.blocks) == before.input // trace.block_size
        assert before.output == pytest.approx(250, abs=1)
        assert request.gap_s == pytest.approx(0.5)
    first, other = [request for request in trace.requests if request.turn == 0][:2]
    assert 220 * 2 / 3 <= common(first.blocks, other.blocks) <= 220


def test_a_token_may_be_longer(tmp_path: Path) -> None:
    """Lengths follow what the operator knows of the model's tokens."""
    trace, _ = read(written(tmp_path / "access.log", session(0, 2, 0)), 6.4)
    assert trace.block_size == 40
    assert trace.requests[0].input == (len(SYSTEM) + 2_000) * 40 // 256


def test_what_says_nothing_is_left_out(tmp_path: Path) -> None:
    """Requests without a decision, and decisions of an earlier version, are counted; the rest is read."""
    other = {"time": "2026-12-01T00:00:00Z", "smetric": {"reason": "no_pool"}}
    lines = [*session(0, 2, 0), {"time": "2026-12-01T00:00:00Z", "smetric": None}, other]
    trace, left_out = read(written(tmp_path / "access.log", lines))
    assert (len(trace.requests), left_out) == (2, 2)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"digests": "12.zz"}, "smetric.digests"),
        ({"digests": "12"}, "smetric.digests"),
        ({"block_bytes": 512.0}, "smetric.block_bytes"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, change: dict[str, object], field: str) -> None:
    """By its number and the field, with what was expected."""
    good, bad = session(0, 2, 0)
    bad["smetric"] = {**bad["smetric"], **change}  # type: ignore[dict-item]
    with pytest.raises(TraceError, match=rf":2: {field}: expected"):
        read(written(tmp_path / "access.log", [good, bad]))


def test_a_time_that_is_none_is_named(tmp_path: Path) -> None:
    """`time` must be a date and time."""
    (bad,) = session(0, 1, 0)
    with pytest.raises(TraceError, match=":1: time: expected"):
        read(written(tmp_path / "access.log", [bad | {"time": "yesterday"}]))
