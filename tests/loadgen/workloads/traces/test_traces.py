"""Traces in seven formats become the same data; a bad line is named, with its field and what was expected."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from loadgen.workloads import traces
from loadgen.workloads.trace import Fact, Trace, TraceRequest, Trigger, common, length, names
from loadgen.workloads.traces import FORMATS, TraceError, own_jsonl

FIXTURES = Path(__file__).parent / "samples"


def jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def by_id(trace: Trace) -> dict[str, TraceRequest]:
    """Its requests."""
    return {request.id: request for request in trace.requests}


@pytest.mark.parametrize(
    ("file", "format_name"),
    [
        ("mooncake.jsonl", "mooncake"),
        ("aiperf.jsonl", "aiperf"),
        ("azure.csv", "azure"),
        ("claude-code.jsonl.gz", "claude-code"),
        ("trace_0026.json", "claude-code"),
        ("tracelab.jsonl", "tracelab"),
    ],
)
def test_recorded_files_are_recognised_and_hold_what_every_trace_does(file: str, format_name: str) -> None:
    """Each published format is told by its content; requests come by arrival, parents first, named as far as told."""
    found = traces.detect(FIXTURES / file).NAME
    assert found == format_name
    trace = traces.load(FIXTURES / file)
    seen: set[str] = set()
    before = 0.0
    for request in trace.requests:
        assert request.arrival_s >= before
        assert request.parent is None or request.parent in seen
        assert request.output >= 1
        assert length(request.blocks) - request.input / trace.block_size < 1
        assert 0 <= request.history <= request.input
        assert request.system <= request.input
        assert bool(request.blocks) == (Fact.BLOCKS in trace.facts)
        before = request.arrival_s
        seen.add(request.id)
    assert len(seen) == len(trace.requests)


def test_every_format_is_known_by_its_own_first_line_alone() -> None:
    """No file of one format is taken for another's, whatever the order of FORMATS."""
    for file in FIXTURES.glob("*.[jc]*"):
        text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        first = text.splitlines()[0]
        keys = json.loads(first) if first.startswith(b"{") else dict.fromkeys(first.decode().split(","))
        assert sum(known.recognises(keys) for known in FORMATS) == 1, file


def test_the_superset_reads_what_it_wrote(tmp_path: Path) -> None:
    """All fields, facts and absences survive writing and reading, plain and gzip."""
    requests = [
        TraceRequest(
            id="a", session="s", turn=0, arrival_s=0.5, input=130, output=7, blocks=((3, 2),), system=64, tools=9
        ),
        TraceRequest(
            id="b",
            session="s",
            turn=1,
            arrival_s=2.25,
            input=200,
            output=9,
            blocks=((3, 2), (9, 2)),
            parent="a",
            trigger=Trigger.COMPACTION,
            gap_s=0.125,
            duration_s=1.5,
            history=137,
        ),
        TraceRequest(id="c", session="t", turn=0, arrival_s=2.25, input=40, output=1, stream=False),
    ]
    trace = Trace("made", 64, requests, frozenset({Fact.BLOCKS, Fact.SESSIONS}))
    file = BytesIO()
    own_jsonl.write(trace, file)
    (tmp_path / "made.jsonl").write_bytes(file.getvalue())
    (tmp_path / "made.jsonl.gz").write_bytes(gzip.compress(file.getvalue()))
    assert traces.load(tmp_path / "made.jsonl") == trace
    assert traces.load(tmp_path / "made.jsonl.gz") == trace


def test_the_superset_takes_plain_ids_and_tells_facts_from_what_is_there(tmp_path: Path) -> None:
    """hash_ids do as well as hash_runs, numbers as ids; without `facts`, what the lines hold is what is known."""
    row = {"request_id": 1, "session_id": 5, "turn": 0, "timestamp_ms": 10, "input_length": 32, "output_length": 0}
    more = {**row, "request_id": 2, "parent_request_id": 1, "turn": 1, "trigger": "user", "timestamp_ms": 20}
    trace = traces.load(
        jsonl(
            tmp_path / "x.jsonl",
            [{**row, "block_size": 16, "hash_ids": [7, 8]}, {**more, "block_size": 16, "hash_ids": [7, 9]}],
        )
    )
    first, second = trace.requests
    assert (first.id, first.session, first.blocks, first.output) == ("1", "5", ((7, 2),), 1)
    assert (second.parent, second.trigger, second.arrival_s) == ("1", Trigger.USER, 0.02)
    assert trace.facts == {Fact.SESSIONS, Fact.ARRIVALS, Fact.BLOCKS, Fact.TRIGGERS}


def test_mooncake_sessions_are_inferred_from_whole_prompts(tmp_path: Path) -> None:
    """A prompt that begins with all whole blocks of an earlier one, with room for its reply, goes on from it."""

    def row(ms: int, tokens: int, ids: list[int], reply: int = 10) -> dict[str, Any]:
        return {"timestamp": ms, "input_length": tokens, "output_length": reply, "hash_ids": ids}

    trace = traces.load(
        jsonl(
            tmp_path / "x.jsonl",
            [
                row(0, 1100, [0, 1, 2]),  # two whole blocks, and a part
                row(5, 600, [0, 3]),  # the shared block alone: begins nothing
                row(1000, 1600, [0, 1, 4, 5]),  # goes on from line 1
                row(2000, 1640, [0, 1, 4, 6], 10),  # goes on from line 3
                row(3000, 1105, [0, 1, 7]),  # no room for line 1's reply
                row(4000, 2000, [0, 8, 9, 10]),
            ],
        )
    )
    assert [request.parent for request in trace.requests] == [None, None, "1", "3", None, None]
    assert [request.turn for request in trace.requests] == [0, 0, 1, 2, 0, 0]
    assert [request.session for request in trace.requests] == ["1", "2", "1", "1", "5", "6"]
    assert [request.history for request in trace.requests][2:4] == [1110, 1610]
    assert trace.requests[2].arrival_s == 1.0
    assert trace.facts == {Fact.BLOCKS, Fact.INFERRED_SESSIONS, Fact.ARRIVALS}


def test_aiperf_turns_grow_by_replies_and_new_tokens(tmp_path: Path) -> None:
    """Later turns carry history, reply and new tokens; turn 0 is shared by its names, the rest is a session's own."""
    rows: list[dict[str, Any]] = [
        {"session_id": "a", "input_length": 1100, "output_length": 400, "hash_ids": [0, 1, 90], "timestamp": 0.0},
        {"session_id": "a", "input_length": 600, "output_length": 20, "hash_ids": [91, 92], "delay": 3000.0},
        {"session_id": "b", "input_length": 1030, "output_length": 5, "hash_ids": [0, 2, 95], "timestamp": 500.0},
        {"session_id": "b", "input_length": 1000, "output_length": 5, "hash_ids": [96, 97], "delay": 10.0},
    ]
    trace = traces.load(jsonl(tmp_path / "x.jsonl", rows))
    found = by_id(trace)
    first, later = found["1"], found["2"]
    assert list(names(first.blocks)) == [0, 1]  # the part of a block has no name that fits what follows
    assert (later.input, later.history, later.turn, later.gap_s) == (1100 + 400 + 600, 1500, 1, 3.0)
    assert length(later.blocks) == 2100 // 512
    assert common(later.blocks, first.blocks) == 2
    assert later.arrival_s > 3.0 + 400 * 0.01  # after the reply, which takes time
    assert common(found["4"].blocks, later.blocks) == 1
    assert not {*names(found["4"].blocks)} & {*names(later.blocks)} - {0}
    assert trace.facts == {Fact.BLOCKS, Fact.SESSIONS, Fact.GAPS, Fact.ARRIVALS}
    rows[2]["timestamp"] = 0.0
    assert Fact.ARRIVALS not in traces.load(jsonl(tmp_path / "x.jsonl", rows)).facts


def test_bailian_sessions_are_chains_of_parents(tmp_path: Path) -> None:
    """A child has its root's session; one whose parent is not in the trace keeps its turn and begins a session."""
    row = {"timestamp": 1.5, "input_length": 33, "output_length": 4, "type": "text", "turn": 1, "hash_ids": [4, 5, 6]}
    child = {"parent_chat_id": 7, "timestamp": 9.0, "input_length": 64, "turn": 2, "hash_ids": [4, 5, 8, 9]}
    trace = traces.load(
        jsonl(
            tmp_path / "x.jsonl",
            [
                {**row, "chat_id": 7, "parent_chat_id": -1},
                {**row, **child, "chat_id": 8},
                {**row, "chat_id": 9, "parent_chat_id": 2, "turn": 5, "timestamp": 3.0},
            ],
        )
    )
    found = by_id(trace)
    assert [request.id for request in trace.requests] == ["7", "9", "8"]
    assert (found["8"].parent, found["8"].session, found["8"].turn, found["8"].history) == ("7", "7", 1, 37)
    assert (found["9"].parent, found["9"].session, found["9"].turn) == (None, "9", 4)
    assert (trace.block_size, found["8"].blocks) == (16, ((4, 2), (8, 2)))


def test_claude_code_sessions_share_equal_system_prompts_and_nothing_else() -> None:
    """The first (tool + system) / 64 names are common to sessions with equal token counts; other names are not."""
    trace = traces.load(FIXTURES / "claude-code.jsonl.gz")
    first = {request.session: request for request in trace.requests if request.id.endswith(":0")}
    one, two, other = (first[name] for name in sorted(first) if "/" not in name)
    if one.system != two.system:
        one, two, other = two, other, one
    assert one.system == two.system == 14_664
    assert common(one.blocks, two.blocks) == 14_664 // 64
    assert not {*names(one.blocks)} & {*names(other.blocks)}
    assert Fact.ARRIVALS not in trace.facts


def test_claude_code_follow_ups_compactions_and_subagents(tmp_path: Path) -> None:
    """Turns count replies carried; a shrunken prompt that carries little is a compaction; subagents fork off."""

    def entry(t: float, tokens: int, runs: list[list[int]], trig: str = "agent", api: float | None = 2.0) -> Any:
        return {"t": t, "in": tokens, "out": 50, "trig": trig, "stop": "", "api": api, "think": 0.0, "h": runs}

    sub = {"t": 20.0, "sub": "Explore", "reqs": [entry(0.0, 128, [[50, 2]], "user"), entry(4.0, 192, [[50, 3]])]}
    session = {
        "id": "s",
        "block_size": 64,
        "hash_id_scope": "local",
        "tool_tokens": 100,
        "system_tokens": 40,
        "reqs": [
            entry(0.0, 640, [[1, 10]], "user"),
            entry(10.0, 1280, [[1, 20]]),
            sub,
            entry(30.0, 960, [[1, 12], [40, 3]]),
            entry(40.0, 320, [[1, 2], [60, 3]]),
            entry(50.0, 390, [[1, 2], [70, 4]], api=None),
            entry(60.0, 400, [[1, 2], [70, 4]], "user"),
        ],
    }
    found = by_id(traces.load(jsonl(tmp_path / "x.jsonl", [session])))
    assert [found[f"s:{index}"].turn for index in (0, 1, 3, 4, 5, 6)] == [0, 1, 2, 0, 1, 2]
    assert found["s:3"].trigger is Trigger.AGENT  # shorter, but it carries more than half: somebody went back a little
    assert found["s:4"].trigger is Trigger.COMPACTION
    assert found["s:5"].trigger is Trigger.AGENT  # all of its history was rewritten, and it is as long: a follow-up
    assert [found[f"s:{index}"].parent for index in (0, 1, 3)] == [None, "s:0", "s:1"]
    assert (found["s:1"].gap_s, found["s:1"].duration_s, found["s:1"].history) == (8.0, 2.0, 690)
    assert found["s:5"].duration_s is None
    assert (found["s:0"].system, found["s/1:0"].system) == (140, 0)
    first, second = found["s/1:0"], found["s/1:1"]
    assert (first.session, first.parent, first.turn, first.trigger) == ("s/1", "s:1", 0, Trigger.AGENT)
    assert (first.arrival_s, second.arrival_s, first.gap_s) == (20.0, 24.0, 8.0)
    assert (second.parent, second.turn) == ("s/1:0", 1)


def test_claude_code_originals_are_read_alone_by_directory_and_laid_out(tmp_path: Path) -> None:
    """The published form says the same as the compacted one, in one line or many; a directory is one trace."""
    original = traces.load(FIXTURES / "trace_0026.json")
    assert [(request.input, request.turn, request.trigger) for request in original.requests] == [
        (15_291, 0, Trigger.USER),
        (17_401, 1, Trigger.USER),
        (20_068, 2, Trigger.AGENT),
    ]
    document = json.loads((FIXTURES / "trace_0026.json").read_text())
    (tmp_path / "one.json").write_text(json.dumps(document, indent=1))
    (tmp_path / "two.json").write_text(json.dumps({**document, "id": "again"}))
    assert traces.load(tmp_path / "one.json").requests == original.requests
    both = traces.load(tmp_path)
    assert len({request.session for request in both.requests}) == 2
    assert common(both.requests[0].blocks, both.requests[1].blocks) == 14_664 // 64


def test_claude_code_subagents_may_have_the_sessions_clock(tmp_path: Path) -> None:
    """Nested times from the marker's on are those of the whole session, as in SemiAnalysis's editions."""
    request = {"t": 0.0, "type": "n", "in": 64, "out": 1, "hash_ids": [1], "input_types": ["text"], "api_time": 1.0}
    nested = {"t": 30.0, "type": "subagent", "requests": [{**request, "t": 31.0, "hash_ids": [9]}]}
    session = {"id": "s", "block_size": 64, "requests": [request, nested]}
    assert by_id(traces.load(jsonl(tmp_path / "x.json", [session])))["s/1:0"].arrival_s == 31.0


def test_azure_is_arrivals_and_lengths() -> None:
    """Times count from the first request; nothing else is claimed."""
    trace = traces.load(FIXTURES / "azure.csv")
    assert [(request.input, request.output) for request in trace.requests][:2] == [(4808, 10), (3180, 8)]
    assert trace.requests[1].arrival_s == pytest.approx(0.052)
    assert trace.facts == {Fact.ARRIVALS}


def test_tracelab_rounds_have_times_and_triggers() -> None:
    """A round lasts from its last input to its last event; the gap is the time between rounds of a session."""
    trace = traces.load(FIXTURES / "tracelab.jsonl")
    first, second = (request for request in trace.requests if request.session.startswith("claude"))
    assert (first.trigger, second.trigger) == (Trigger.USER, Trigger.AGENT)
    assert first.duration_s == pytest.approx(11.496)
    assert second.gap_s == pytest.approx(19.291)
    assert (second.turn, second.parent, second.history) == (1, first.id, 33_203)


GOOD: Mapping[str, Mapping[str, Any]] = {
    "mooncake": {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]},
    "aiperf": {"session_id": "s", "input_length": 600, "output_length": 5, "hash_ids": [0, 1], "timestamp": 0.0},
    "bailian": {"chat_id": 1, "timestamp": 0.0, "input_length": 20, "output_length": 5, "hash_ids": [0, 1], "turn": 1},
    "claude-code": {"id": "s", "block_size": 64, "reqs": [{"t": 0.0, "in": 64, "out": 1, "h": [[1, 1]]}]},
    "superset": {
        "request_id": "a",
        "session_id": "s",
        "turn": 0,
        "timestamp_ms": 0,
        "input_length": 600,
        "output_length": 5,
        "block_size": 512,
        "hash_ids": [0, 1],
    },
    "tracelab": {
        "session_id": "s",
        "round_index": 0,
        "input_tokens_total": 5,
        "output_tokens": 5,
        "timing_events": [{"event_type": "user_message", "timestamp": "2026-06-01T05:40:20.151Z"}],
    },
}
LENGTHS = {"mooncake": "input_length", "aiperf": "input_length", "bailian": "input_length", "superset": "input_length"}


@pytest.mark.parametrize("name", GOOD)
def test_bad_lines_are_named_with_field_and_expectation(name: str, tmp_path: Path) -> None:
    """In each format: a cut line, wrong type, missing field, negative length give path:line, field, expectation."""
    good = GOOD[name]
    path = tmp_path / "x.jsonl"
    jsonl(path, [good])
    found = traces.detect(path).NAME
    assert found == name
    traces.load(path)
    numeric = LENGTHS.get(name, {"claude-code": "block_size", "tracelab": "input_tokens_total"}.get(name, ""))
    required = "id" if name == "claude-code" else numeric
    cases: list[tuple[str, str, str]] = [
        (json.dumps(good)[:-9], "", "not valid JSON, or cut off"),
        (json.dumps({**good, numeric: "many"}), numeric, "expected `int`, got `str`"),
        (json.dumps({**good, numeric: -1}), numeric, "expected `int` >= 1"),
        (json.dumps({key: value for key, value in good.items() if key != required}), required, "missing; expected"),
    ]
    for line, field, expectation in cases:
        path.write_text(json.dumps(good) + "\n\n" + line + "\n")
        with pytest.raises(TraceError) as error:
            traces.load(path)
        assert str(error.value).startswith(f"{path}:3: {field}: " if field else f"{path}:3: "), str(error.value)
        assert expectation in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "the file is empty; expected a trace"),
        (b"\n \n", "the file is empty; expected a trace"),
        (b'{"who": "knows"}\n', ":1: no known trace format; expected one of: "),
        (b"a,b,c\n1,2,3\n", ":1: no known trace format; expected one of: "),
        (b"\x7fELF\x00\x01\n", ":1: no known trace format; expected one of: "),
        (b"[1, 2]\n", ":1: no known trace format; expected one of: "),
        (b'{"request_id": "\xff\xfe", "input_length": 1}\n', ":1: not UTF-8; expected JSON in UTF-8"),
        (
            gzip.compress((FIXTURES / "mooncake.jsonl").read_bytes())[:-20],
            "the gzip file is cut off or damaged; expected it whole",
        ),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", ": no requests; expected at least one"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,4\n", ":2: expected 3 columns, got 2"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,4,5\n", ":2: TIMESTAMP: expected a date and time, got 'noon'"),
        (
            b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,-4,5\n",
            ":2: ContextTokens: expected a whole number from 1 to 100000000, got '-4'",
        ),
        (
            b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,4," + b"9" * 5000 + b"\n",
            ":2: GeneratedTokens: expected a whole number from 0 to 100000000, got '9999",
        ),
        (
            b"TIMESTAMP,ContextTokens,GeneratedTokens\n0001-01-01,4,5\n9999-12-31,4,5\n",
            ":3: TIMESTAMP: expected a trace of at most ten years",
        ),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16\r,4,5\n", ":2: not valid CSV (new-line character"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n" + b"9" * 140_000 + b",4,5\n", ":2: not valid CSV (field larger"),
        (b'{"request_id":' + b"[" * 100_000, ":1: JSON nested too deeply"),
        (b'{"id": "s", "block_size": 64, "requests":' + b'[{"t":0,"requests":' * 100_000, "JSON nested too deeply"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n\xff,4,5\n", ":2: not UTF-8; expected CSV in UTF-8"),
    ],
)
def test_files_that_are_no_trace_say_so(text: bytes, says: str, tmp_path: Path) -> None:
    """Empty, of no known format, not UTF-8, a damaged gzip, a bad CSV: a TraceError that begins with the path."""
    path = tmp_path / "x"
    path.write_bytes(text)
    with pytest.raises(TraceError) as error:
        traces.load(path)
    assert str(error.value).startswith(str(path))
    assert says in str(error.value)


ENTRY: Mapping[str, Any] = {"t": 0.0, "in": 64, "out": 1, "h": [[1, 1]]}


def _session(name: str, entries: list[Any]) -> Mapping[str, Any]:
    return {"id": name, "block_size": 64, "reqs": entries}


def _nested(depth: int) -> list[Any]:
    return [{"t": 0.0, "reqs": _nested(depth - 1)}] if depth else [ENTRY]


def _changed(name: str, **fields: Any) -> Callable[[], list[Mapping[str, Any]]]:
    return lambda: [{**GOOD[name], **fields}]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (_changed("mooncake", hash_ids=[]), ":1: hash_ids: expected 1 names by the prompt's length, or one more"),
        (_changed("mooncake", hash_ids=[0, 1, 2]), "got 3"),
        (_changed("aiperf", timestamp=None), ":1: timestamp: missing; expected in a session's first line"),
        (_changed("bailian", hash_ids=[0, 1, 2]), ":1: hash_ids: expected at most 2 by input_length, got 3"),
        (_changed("superset", system_length=601), ":1: system_length: expected at most input_length, got 601"),
        (_changed("superset", tools_length=1), ":1: tools_length: expected at most system_length, got 1"),
        (_changed("superset", parent_request_id="b"), ":1: parent_request_id: expected a request that arrived"),
        (
            _changed("superset", trigger="moon"),
            ":1: trigger: expected a value that docs/workloads.md lists, got 'moon'",
        ),
        (lambda: [GOOD["superset"]] * 2, ":2: request_id: expected one that no other has, got 'a'"),
        (
            lambda: [GOOD["superset"], {**GOOD["superset"], "request_id": "b", "block_size": 16}],
            ":2: block_size: expected 512 as in the first line, got 16",
        ),
        (lambda: [GOOD["bailian"]] * 2, ":2: chat_id: expected one that no other has, got '1'"),
        (lambda: [GOOD["claude-code"]] * 2, ":2: id: expected one that no other has, got 's'"),
        (
            lambda: [_session("s", [{"t": 0.0, "reqs": [ENTRY]}]), _session("s/1", [ENTRY])],
            ":2: id: expected one that no other has, got 's/1:0' as in ",
        ),
        (_changed("superset", request_id=-1), ":1: request_id: expected another than -1, which stands for no parent"),
        (_changed("superset", request_id=""), ":1: request_id: expected `str` of length >= 1"),
        (_changed("bailian", chat_id=-1), ":1: chat_id: expected `int` >= 0"),
        (_changed("bailian", parent_chat_id=1), ":1: parent_chat_id: expected a request that arrived no later"),
        (
            lambda: [{**GOOD["bailian"], "parent_chat_id": 2}, {**GOOD["bailian"], "chat_id": 2, "parent_chat_id": 1}],
            ":1: parent_chat_id: expected a request that arrived no later",
        ),
        (
            lambda: [{**GOOD["bailian"], "parent_chat_id": 2}, {**GOOD["bailian"], "chat_id": 2, "timestamp": 5.0}],
            ":1: parent_chat_id: expected a request that arrived no later",
        ),
        (
            lambda: [
                {**GOOD["superset"], "timestamp_ms": 10},
                {**GOOD["superset"], "request_id": "b", "parent_request_id": "a"},
            ],
            ":2: parent_request_id: expected a request that arrived no later",
        ),
        (_changed("claude-code", reqs=[{**ENTRY, "h": [[0, 1]]}]), ":1: reqs[0].h[0][0]: expected `int` >= 1"),
        (lambda: [_session("s", _nested(300))], ":1: requests: expected subagents at most 16 deep"),
        (
            _changed("claude-code", hash_id_scope="global"),
            ":1: hash_id_scope: expected a value that docs/workloads.md lists",
        ),
        (_changed("claude-code", reqs=[{"t": 0.0, "in": 128, "h": [[1, 1]]}]), ":1: s:0.h: expected 2 names"),
        (_changed("claude-code", reqs=[{"t": 0.0}]), ":1: s:0.in: missing or 0; expected the prompt's tokens"),
        (
            _changed("claude-code", reqs=[{"t": 0.0, "in": 64, "h": [[1]]}]),
            ":1: reqs[0].h[0]: expected `array` of length 2",
        ),
        (_changed("tracelab", timing_events=[]), ":1: timing_events: expected an event of user_message or tool_result"),
    ],
)
def test_lines_that_contradict_themselves_or_others_are_refused(
    rows: Callable[[], list[Mapping[str, Any]]], says: str, tmp_path: Path
) -> None:
    """Too few or many names, unknown parents, repeated ids, changed block sizes: path:line, field, expectation."""
    with pytest.raises(TraceError) as error:
        traces.load(jsonl(tmp_path / "x.jsonl", rows()))
    assert says in str(error.value)


def _at(name: str, **fields: Any) -> Callable[[], list[Mapping[str, Any]]]:
    """Three good lines, and one with another time."""
    ids = {"superset": "request_id", "bailian": "chat_id", "claude-code": "id", "aiperf": "session_id"}
    numbered = [
        {**GOOD[name], ids[name]: str(n) if name != "bailian" else n} if name in ids else GOOD[name] for n in (1, 2, 3)
    ]
    return lambda: [*numbered, {**GOOD[name], **fields}]


def _round(timestamp: str, event: str = "user_message") -> Mapping[str, Any]:
    return {"event_type": event, "timestamp": timestamp}


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (_at("mooncake", timestamp=1.7e12), ":4: timestamp: expected a trace of at most ten years"),
        (_at("aiperf", timestamp=1.7e12), ":4: timestamp or delay: expected a trace of at most ten years"),
        (_at("bailian", chat_id=9, timestamp=1.7e9), ":4: timestamp: expected a trace of at most ten years"),
        (_at("superset", timestamp_ms=1.7e12), ":4: timestamp_ms: expected a trace of at most ten years"),
        (_at("claude-code", reqs=[{"t": 1.7e9, "in": 64, "h": [[1, 1]]}]), ":4: t: expected a trace of at most ten"),
        (
            _at("tracelab", timing_events=[_round("0001-01-01T00:00:00")]),
            ":4: timing_events: expected a trace of at most ten years; others are up to 6.39e+10 s later",
        ),
        (_at("mooncake", timestamp=1e308), ":4: timestamp: expected `float` <= "),
        (_at("superset", timestamp_ms=1e308), ":4: timestamp_ms: expected `float` <= "),
        (_at("superset", gap_ms=1e12), ":4: gap_ms: expected at most ten years"),
        (_at("superset", duration_ms=1e12), ":4: duration_ms: expected at most ten years"),
        (
            _at(
                "tracelab",
                timing_events=[_round("2026-06-01T00:00:00Z"), _round("9999-01-01T00:00:00Z", "assistant_message")],
            ),
            ":4: timing_events: expected at most ten years",
        ),
    ],
)
def test_times_that_no_recording_has_are_refused(
    rows: Callable[[], list[Mapping[str, Any]]], says: str, tmp_path: Path
) -> None:
    """One stray time, early or late, is named by its own line, not by the others'."""
    with pytest.raises(TraceError) as error:
        traces.load(jsonl(tmp_path / "x.jsonl", rows()))
    assert says in str(error.value)


@pytest.mark.parametrize("digits", [10, 400, 5000])
@pytest.mark.parametrize(
    ("name", "field"), [*LENGTHS.items(), ("tracelab", "input_tokens_total"), ("claude-code", "block_size")]
)
def test_lengths_that_no_prompt_has_are_refused(name: str, field: str, digits: int, tmp_path: Path) -> None:
    """A length of any number of digits is an error of its field."""
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({**GOOD[name], field: "HERE"}).replace('"HERE"', "9" * digits) + "\n")
    with pytest.raises(TraceError, match=rf"x\.jsonl:1: {field}: expected .*100000000"):
        traces.load(path)


def test_a_number_that_no_float_holds_is_an_error_of_its_field(tmp_path: Path) -> None:
    """1e999 is refused where it stands, though the first line is looked at before its format is known."""
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({**GOOD["superset"], "timestamp_ms": "HERE"}).replace('"HERE"', "1e999"))
    with pytest.raises(TraceError, match=r":1: timestamp_ms: expected at most"):
        traces.load(path)


def test_turns_that_add_up_to_no_prompt_are_refused(tmp_path: Path) -> None:
    """aiperf's prompts are sums of lines: what our own format would refuse is refused here."""
    row = {**GOOD["aiperf"], "input_length": 512, "output_length": 60_000_000, "hash_ids": [1]}
    with pytest.raises(TraceError, match=r":3: input_length: expected prompts of at most 100000000 tokens"):
        traces.load(jsonl(tmp_path / "x.jsonl", [row] * 3))


def test_a_directory_names_the_file_of_a_repeated_session(tmp_path: Path) -> None:
    """Two files with one session id are refused, and the later one is named."""
    for name in ("one.json", "two.json"):
        jsonl(tmp_path / name, [GOOD["claude-code"]])
    with pytest.raises(TraceError, match=r"two\.json:1: id: expected one that no other has, got 's'"):
        traces.load(tmp_path)


def test_claude_code_subagents_begin_after_their_parent_in_whatever_order_they_stand(tmp_path: Path) -> None:
    """Nested times of which one is before the marker count from it, so no child stands before its parent."""
    nested = {"t": 6.0, "reqs": [{**ENTRY, "t": 10.0}, {**ENTRY, "t": 1.0}]}
    trace = traces.load(jsonl(tmp_path / "x.json", [_session("s", [{**ENTRY, "t": 5.0}, nested])]))
    assert [(one.id, one.parent, one.arrival_s) for one in trace.requests] == [
        ("s:0", None, 5.0),
        ("s/1:0", "s:0", 7.0),
        ("s/1:1", "s/1:0", 16.0),
    ]


def _written(trace: Trace, path: Path) -> Path:
    with path.open("wb") as file:
        own_jsonl.write(trace, file)
    return path


def test_bailian_blocks_without_ids_are_nobodys_and_ids_may_be_negative(tmp_path: Path) -> None:
    """Equal ids stay equal names, what has none shares with nobody, and our own format takes all of it."""
    row = GOOD["bailian"]
    path = jsonl(
        tmp_path / "x.jsonl",
        [
            {**row, "input_length": 160, "hash_ids": [-5, -4]},
            {**row, "chat_id": 2, "input_length": 165, "hash_ids": [-5, -4, 2**64]},
            {**row, "chat_id": 3, "input_length": 33, "hash_ids": []},
        ],
    )
    trace = traces.load(path)
    one, two, three = trace.requests
    assert [length(request.blocks) for request in trace.requests] == [10, 10, 2]
    assert common(one.blocks, two.blocks) == 2
    found = [name for request in trace.requests for name in names(request.blocks)]
    assert len(set(found)) == 10 + 8 + 2
    assert 0 <= min(found) <= max(found) < 2**40
    assert not {*names(three.blocks)} & {*names(one.blocks), *names(two.blocks)}
    assert traces.load(_written(trace, tmp_path / "y.jsonl")).requests == trace.requests


@pytest.mark.parametrize("name", ["mooncake", "superset"])
def test_names_may_be_hashes(name: str, tmp_path: Path) -> None:
    """Names of 64 bits and more become small ones that are equal where they were, and runs where those were."""
    path = jsonl(tmp_path / "x.jsonl", [{**GOOD[name], "hash_ids": [2**70, 2**70 + 1]}])
    assert [request.blocks for request in traces.load(path).requests] == [((0, 2),)]


def test_a_byte_order_mark_is_no_part_of_a_trace(tmp_path: Path) -> None:
    """JSON lines, JSON laid out and CSV are known with one as without, packed too."""
    path = tmp_path / "x"
    documents = (json.dumps(GOOD["superset"]), json.dumps(GOOD["claude-code"], indent=1))
    for text in (*documents, "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,4,5\n"):
        for pack in (bytes, gzip.compress):
            path.write_bytes(pack(text.encode("utf-8-sig")))
            assert len(traces.load(path).requests) == 1


def test_azure_honours_time_zones(tmp_path: Path) -> None:
    """Rows count on one clock; without a zone they are in UTC."""
    path = tmp_path / "x.csv"
    times = ("2023-01-01 12:00:00+05:00", "2023-01-01 12:00:00-05:00", "2023-01-01 12:00:00")
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"{time},4,5\n" for time in times))
    assert [(one.id, one.arrival_s) for one in traces.load(path).requests] == [("2", 0), ("4", 18_000), ("3", 36_000)]


def test_tracelab_times_do_not_depend_on_this_machines_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times without a zone are in UTC wherever they are read, and the year 1 is a year."""
    rows = [
        {**GOOD["tracelab"], "timing_events": [_round(time)]}
        for time in ("0001-01-01T00:00:00", "0001-01-01T00:01:00Z")
    ]
    path = jsonl(tmp_path / "x.jsonl", rows)
    for zone in ("UTC", "Asia/Tokyo"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        arrivals = [request.arrival_s for request in traces.load(path).requests]
        assert arrivals == [0.0, 60.0]
    monkeypatch.undo()
    time.tzset()


def test_what_cannot_be_opened_says_why(tmp_path: Path) -> None:
    """A missing file and a directory without sessions are errors of the path."""
    with pytest.raises(TraceError, match=r"nothing\.jsonl: No such file or directory"):
        traces.load(tmp_path / "nothing.jsonl")
    with pytest.raises(TraceError, match=r"no \.json file in this directory"):
        traces.load(tmp_path)
