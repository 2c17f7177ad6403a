"""The replay against a scripted server: what it sends when, what it makes of answers, what it writes."""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.command_error import CommandError
from loadgen.commands import replay as command
from loadgen.replay import run as replay_run
from loadgen.replay.chat_request import connect
from loadgen.replay.replay import PARENT_FAILED, UNFINISHED, Options, Replay
from loadgen.replay.script import Turn
from loadgen.results.records import CSV, Row, read_info, read_rows
from loadgen.workloads.scaling import scaled
from loadgen.workloads.trace import Dispatch, Fact, Trace, TraceRequest, Trigger
from loadgen.workloads.traces import own_jsonl
from tests.support.chat_server import INSTANCE, TOOL, USED, ChatServer, Words, chat_server

CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def request(name: str, parent: str | None = None, **fields: Any) -> TraceRequest:
    """Request `name`, whose session is what stands before the slash."""
    session, _, turn = name.partition("/")
    given = {"turn": int(turn or 0), "arrival_s": 0.0, "input": 40, "output": USED, "gap_s": 0.0 if parent else None}
    return TraceRequest(id=name, session=session, parent=parent, **{**given, **fields})


def trace(*requests: TraceRequest) -> Trace:
    return Trace("made up", 16, requests)


@pytest.fixture
async def server() -> AsyncIterator[ChatServer]:
    async with chat_server() as server:
        yield server


async def replayed(
    server: ChatServer, given: Trace, keep: Mapping[str, int] | None = None, **options: Any
) -> dict[str, Row]:
    """The rows of a replay by request; each request has one."""
    rows: list[Row] = []
    async with connect(server.url, timeout_s=20.0) as http:
        run = Replay(http, given, Words(keep), Options(**options), rows.append)
        await run.run()
    assert run.counts.in_flight == 0
    assert run.counts.done == len(rows)
    assert run.counts.failed == sum(row.error is not None for row in rows)
    found = {row.request: row for row in rows}
    assert len(found) == len(rows)
    return found


async def test_arrivals_are_kept(server: ChatServer) -> None:
    """In the open loop sessions are due at their times, counted from the first one's and divided by the speed, and are
    sent no earlier, however long answers take."""
    server.hold_s = 0.3
    times = {"a/0": 100.0, "b/0": 100.2, "c/0": 100.4}
    rows = await replayed(server, trace(*(request(name, arrival_s=at) for name, at in times.items())), speed=2.0)
    assert [rows[name].due_s for name in times] == pytest.approx([0.0, 0.1, 0.2])
    assert all(row.sent_s >= row.due_s - 0.002 for row in rows.values())
    assert server.most_open == set(times)


async def test_think_counts_from_the_real_end(server: ChatServer) -> None:
    """With dispatch `think` a follow-up is due its gap, divided by the speed, after the parent's last token."""
    given = trace(request("a/0"), request("a/1", "a/0", arrival_s=50.0, gap_s=0.2))
    rows = await replayed(server, given, speed=2.0)
    assert rows["a/0"].end_s is not None
    assert rows["a/1"].due_s == pytest.approx(rows["a/0"].end_s + 0.1)
    assert rows["a/1"].sent_s >= rows["a/1"].due_s - 0.002


async def test_trace_keeps_time_stamps(server: ChatServer) -> None:
    """With dispatch `trace` a follow-up is due at its time, or at its parent's end where that is later."""
    server.hold_s = 0.2
    given = trace(
        request("a/0"),
        request("a/1", "a/0", arrival_s=0.05, gap_s=90.0),
        request("a/2", "a/1", arrival_s=0.7, gap_s=90.0),
    )
    rows = await replayed(server, given, dispatch=Dispatch.TRACE)
    assert rows["a/1"].due_s == rows["a/0"].end_s
    assert rows["a/2"].due_s == pytest.approx(0.7)


async def test_follow_ups_carry_real_answers(server: ChatServer) -> None:
    """A follow-up carries what was really answered, a call is followed by its result, a fork goes on from as much of
    its parent's conversation as it inherits, and a compaction keeps the system prompt alone."""
    server.reply["a/0"] = [{"role": "assistant", "content": None}, {"tool_calls": [CALL]}]
    given = trace(
        request("a/0"),
        request("a/1", "a/0"),
        request("f/2", "a/1"),
        request("g/1", "a/1"),
        request("a/2", "a/1"),
        request("a/3", "a/2", trigger=Trigger.COMPACTION),
    )
    await replayed(server, given, {"g/1": 3})
    called = {key: value for key, value in CALL.items() if key != "index"}
    assert server.bodies["a/1"]["messages"][2:] == [
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c1", "content": "a/1"},
    ]
    assert server.said("a/2") == ["system", "a/0", "", "a/1", " so be it", "a/2"]
    assert server.said("f/2") == ["system", "a/0", "", "a/1", " so be it", "f/2"]
    assert server.said("g/1") == ["system", "a/0", "", "g/1"]
    assert server.said("a/3") == ["system", "a/3"]


async def test_lengths_are_forced(server: ChatServer) -> None:
    """A request asks for a stream of exactly its reply's length, for usage, and for the model, and nothing that vLLM
    does not know."""
    await replayed(server, trace(request("a/0", output=7)), model="tiny")
    body = server.bodies["a/0"]
    del body["messages"]
    assert body == {
        "model": "tiny",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": 7,
        "min_tokens": 7,
        "ignore_eos": True,
    }


async def test_a_request_with_tools_leaves_the_reply_to_the_model(server: ChatServer) -> None:
    """It sends the tools at every turn, and no length but a limit; a shorter reply is no fault of anybody."""
    server.reply["a/0"] = [{"role": "assistant", "content": ""}, {"tool_calls": [CALL]}]
    given = trace(*(request(f"a/{n}", f"a/{n - 1}" if n else None, output=64, tools=1) for n in range(2)))
    rows: list[Row] = []
    async with connect(server.url, timeout_s=20.0) as http:
        run = Replay(http, given, Words(), Options(), rows.append)
        await run.run()
    for body in server.bodies.values():
        assert body["tools"] == [TOOL]
        assert body["max_tokens"] == 64
        assert not body.keys() & {"min_tokens", "ignore_eos"}
    assert [message["role"] for message in server.bodies["a/1"]["messages"]] == ["system", "user", "assistant", "tool"]
    assert [row.error for row in rows] == [None, None]
    assert run.counts.short == 0
    assert all(row.produced < row.output for row in rows)


async def test_a_short_reply_is_counted(server: ChatServer) -> None:
    """Where the length was forced, fewer tokens mean that something on the way drops what forces it."""
    async with connect(server.url, timeout_s=20.0) as http:
        run = Replay(http, trace(request("a/0", output=64)), Words(), Options(), lambda _: None)
        await run.run()
    assert run.counts.short == 1


async def test_whole_answers_are_understood(server: ChatServer) -> None:
    """Without streaming, text and tool calls go into the history too, and usage into the row, which has no first token;
    and junk is an error."""
    server.reply["a/0"] = [{"tool_calls": [CALL]}]
    given = trace(request("a/0", stream=False), request("a/1", "a/0", stream=False))
    rows = await replayed(server, given)
    assert [(row.error, row.local, row.first_s) for row in rows.values()] == [(None, 10, None), (None, 30, None)]
    assert not server.bodies["a/0"]["stream"]
    assert "stream_options" not in server.bodies["a/0"]
    (call,) = server.bodies["a/1"]["messages"][2]["tool_calls"]
    assert call["function"] == CALL["function"]
    for junk in (b"", b"[1]", b"{}", b'{"choices": []}'):
        server.junk = junk
        assert (await replayed(server, given))["a/0"].error


async def test_a_stream_may_end_without_a_newline(server: ChatServer) -> None:
    """What stands after the last newline of a stream counts."""
    server.end = b"data: [DONE]"
    assert (await replayed(server, trace(request("a/0"))))["a/0"].ok
    server.end = b""
    assert "too early" in ((await replayed(server, trace(request("a/0"))))["a/0"].error or "")


async def test_an_unreachable_server_is_a_row() -> None:
    """Nobody there: a failed row, without a status."""
    rows: list[Row] = []
    async with connect("http://127.0.0.1:1", timeout_s=20.0) as http:
        await Replay(http, trace(request("a/0")), Words(), Options(), rows.append).run()
    assert [(row.status, row.ok) for row in rows] == [(None, False)]


async def test_large_histories_are_sent(server: ChatServer) -> None:
    """A request of several megabytes is sent whole."""
    long = "x" * 5_000_000

    class Long(Words):
        def ask(self, request: TraceRequest) -> Turn:
            turn = super().ask(request)
            return replace(turn, messages=[{"role": "system", "content": long}, *turn.messages[1:]])

    async with connect(server.url, timeout_s=20.0) as http:
        await Replay(http, trace(request("a/0")), Long(), Options(), lambda _: None).run()
    assert server.said("a/0")[0] == long


async def test_rows_say_what_happened(server: ChatServer) -> None:
    """A row has what the workload asked for, what usage and headers said, and times in their order."""
    server.think_s = 0.1
    rows = await replayed(server, trace(request("a/0", trigger=Trigger.USER, output=5)))
    row = rows["a/0"]
    assert (row.session, row.turn, row.trigger, row.output) == ("a", 0, "user", 5)
    assert (row.input, row.produced, row.local, row.instance, row.status) == (20, USED, 10, INSTANCE, 200)
    assert row.ok
    assert row.first_s is not None
    assert row.end_s is not None
    assert row.due_s <= row.sent_s + 0.002
    assert row.first_s >= row.sent_s + 0.1
    assert row.end_s >= row.first_s


@pytest.mark.parametrize(("status", "cut", "word"), [(503, False, "no room"), (429, False, "no room"), (200, True, "")])
async def test_a_session_ends_at_its_first_failure(server: ChatServer, status: int, cut: bool, word: str) -> None:
    """Of a session that failed, what would have followed is not sent but written as failed, forks included, each due
    when it would have been; other sessions go on."""
    server.status["a/1"] = status
    if cut:
        server.cut.add("a/1")
    given = trace(
        request("a/0"),
        request("b/0"),
        request("a/1", "a/0"),
        request("a/2", "a/1", gap_s=30.0),
        request("f/2", "a/1", gap_s=10.0),
        request("a/3", "a/2", gap_s=20.0),
        request("b/1", "b/0"),
    )
    rows = await replayed(server, given)
    failed = {name: row.error for name, row in rows.items() if row.error}
    assert word in (failed.pop("a/1") or "")
    assert rows["a/1"].status == status
    assert rows["a/1"].end_s is None
    assert failed == {"a/2": PARENT_FAILED, "f/2": PARENT_FAILED, "a/3": PARENT_FAILED}
    assert set(server.bodies) == {"a/0", "b/0", "a/1", "b/1"}
    assert rows["a/3"].due_s == pytest.approx(rows["a/2"].due_s + 20.0)
    assert rows["a/2"].due_s == pytest.approx(rows["f/2"].due_s + 20.0)
    if cut:
        assert rows["a/1"].produced == 3  # as many as came


async def test_the_closed_loop_keeps_its_number(server: ChatServer) -> None:
    """N sessions run at a time whenever they arrived, each with its forks; the next begins when one has ended."""
    server.hold_s = 0.02
    sessions = [request(f"{name}/0", arrival_s=1000.0 * number) for number, name in enumerate("abcde")]
    follow_ups = [request(f"{name}/1", f"{name}/0", arrival_s=9000.0) for name in "abcde"]
    rows = await replayed(server, trace(*sessions, *follow_ups, request("f/1", "e/0", arrival_s=9000.0)), closed=2)
    assert all(row.ok for row in rows.values())
    assert len(rows) == 11
    assert len({name for name in server.most_open if name != "f/1"}) == 2
    first_two = max(rows[name].sent_s for name in ("a/0", "b/0"))
    assert rows["c/0"].sent_s >= min(rows[name].end_s or 0 for name in ("a/1", "b/1"))
    assert first_two < rows["c/0"].sent_s


async def test_nothing_is_sent_after_the_end(server: ChatServer) -> None:
    """With a limit of time, what is due later is neither sent nor written; what is in flight then is awaited."""
    server.hold_s = 0.2
    given = trace(
        request("a/0"),
        request("a/1", "a/0", gap_s=5.0),
        request("b/0", arrival_s=0.1),
        request("c/0", arrival_s=1000.0),
    )
    rows = await replayed(server, given, until_s=0.15)
    assert set(rows) == {"a/0", "b/0"}
    assert all(row.ok for row in rows.values())


@pytest.mark.parametrize("closed", [None, 2])
async def test_an_interruption_keeps_what_there_is(server: ChatServer, closed: int | None) -> None:
    """Cancelled, the replay stops sending at once, and has a row for each request that was sent: with what had come of
    it, where it was in flight."""
    server.held.add("b/0")
    given = trace(request("a/0"), request("b/0"), request("b/1", "b/0"), request("c/0", arrival_s=60.0))
    given = Trace("made up", 16, given.requests if closed is None else given.requests[:3])
    rows: list[Row] = []
    async with connect(server.url, timeout_s=20.0) as http:
        run = Replay(http, given, Words(), Options(closed=closed), rows.append)
        running = asyncio.create_task(run.run())
        async with asyncio.timeout(10):
            while len(rows) < 1 or "b/0" not in server.open:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert {row.request: row.error for row in rows} == {"a/0": None, "b/0": UNFINISHED}
    assert rows[1].produced == 3
    assert rows[1].first_s is not None
    assert set(server.bodies) == {"a/0", "b/0"}


async def test_requests_can_be_found_in_a_log(server: ChatServer) -> None:
    """With a tag, a request's path has the tag and the request's id, quoted."""
    await replayed(server, trace(request("a b&c/0")), tag="t1")
    assert server.paths["a b&c/0"] == "/v1/chat/completions?request=t1/a%20b%26c/0"


def run(*arguments: str | Path) -> int:
    """The command."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(argument) for argument in arguments]))


def written(path: Path, given: Trace) -> Path:
    with path.open("wb") as file:
        own_jsonl.write(given, file)
    return path


PAIR = trace(request("a/0", system=16, input=64, output=5), request("a/1", "a/0", input=100, history=69, gap_s=0.01))


async def test_a_run_is_a_directory(server: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command asks the gateway for its model, sends the headers that were given below the URL's path, and leaves
    what was run, the rows, and the same as CSV."""
    path = written(tmp_path / "t.jsonl", PAIR)
    out = tmp_path / "out"
    options = ["--header", "x-team: blue", "--export", "csv", "--label", "ours", "--warmup", "0.001"]
    assert await asyncio.to_thread(run, path, "--url", f"{server.url}/v1/", "--out", out, *options) == 0
    assert {body["model"] for body in server.bodies.values()} == {"tiny"}
    assert {headers["x-team"] for headers in server.headers.values()} == {"blue"}
    info, rows = read_info(out), list(read_rows(out))
    assert [row.request for row in rows] == ["a/0", "a/1"]
    assert (info.kind, info.label, info.instances, info.complete) == ("replay", "ours", [INSTANCE], True)
    assert info.window[0] == 0.001
    assert info.window[1] >= rows[1].due_s
    assert (out / CSV).read_text().splitlines()[1].startswith("a/0,a,0,")
    said = capsys.readouterr()
    assert "2, 0 failed" in said.out
    assert "2 replies had fewer tokens" not in said.out  # the second got what it asked for
    assert "1 replies had fewer tokens" in said.out
    assert said.err == ""


async def test_a_failure_is_an_exit_code(
    server: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a failed request the exit code is 1, the summary says why, and the run is complete all the same."""
    server.default_status = 429
    path = written(tmp_path / "t.jsonl", PAIR)
    assert await asyncio.to_thread(run, path, "--url", server.url, "--out", tmp_path / "out") == 1
    said = capsys.readouterr().out
    assert "2, 2 failed" in said
    assert '1 x 429 {"error": {"message": "no room"}}' in said
    assert "1 x parent failed" in said
    assert read_info(tmp_path / "out").complete


async def test_decisions_come_from_the_access_log(server: ChatServer, tmp_path: Path) -> None:
    """What the log says of this run's requests is in their rows; what it says of other runs, and lines of other kinds,
    are passed over."""
    log = tmp_path / "access.log"
    log.write_text('{"path": "/v1/chat/completions?request=old/a/0", "smetric": {"reason": "stale"}}\n')
    decisions = {
        "a/0": {"reason": "first_turn", "instance": INSTANCE, "load": 2, "mean_load": 1.5, "turn": 0},
        "a/1": {
            "reason": "stick",
            "instance": "10.0.0.9:1",
            "prefill_instance": "10.0.0.7:1",
            "hit_bytes": 150,
            "prompt_bytes": 200,
            "load": 0,
        },
        "b/0": {"reason": "\x1b[2J", "hit_bytes": 1e308, "prompt_bytes": 1e-308},
    }

    def on_ask(path: str) -> None:
        """As Envoy does when a request has ended."""
        name = path.partition("?request=")[2].partition("/")[2]
        with log.open("a") as file:
            file.write(f"[info] no JSON but {path}\n{json.dumps({'path': path, 'smetric': decisions[name]})}\n")

    server.on_ask = on_ask
    path = written(tmp_path / "t.jsonl", trace(*PAIR.requests, request("b/0")))
    options = ["--url", server.url, "--out", tmp_path / "out", "--access-log", log]
    assert await asyncio.to_thread(run, path, *options) == 0
    first, second, odd = sorted(read_rows(tmp_path / "out"), key=lambda row: row.request)
    assert (odd.reason, odd.predicted) == ("\ufffd[2J", None)
    assert (first.reason, first.load, first.mean_load, first.predicted) == ("first_turn", 2, 1.5, None)
    assert (second.reason, second.load, second.predicted) == ("stick", 0, round(second.input * 0.75))
    assert (second.instance, second.decoder) == ("10.0.0.7:1", INSTANCE)


async def test_a_missing_decision_is_said(
    server: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log without the run's requests loses no rows, and is complained of."""
    monkeypatch.setattr("loadgen.replay.access_log.WAIT_S", 0.1)
    (tmp_path / "access.log").touch()
    path = written(tmp_path / "t.jsonl", PAIR)
    options = ["--url", server.url, "--out", tmp_path / "out", "--access-log", tmp_path / "access.log"]
    assert await asyncio.to_thread(run, path, *options) == 0
    assert "a decision for 0 of 2 requests" in capsys.readouterr().err
    assert [row.reason for row in read_rows(tmp_path / "out")] == [None, None]


def test_scaled_lengths_share_what_was_shared() -> None:
    """Scaled, a trace has all lengths times the same factor, with its blocks' names; times stay."""
    one = request("a/0", input=100, output=9, system=33, history=50, blocks=((7, 6),), arrival_s=3.0, gap_s=2.0)
    half = scaled(Trace("t", 16, [one]), 0.5)
    assert half.block_size == 8
    assert half.requests[0] == replace(one, input=50, output=4, system=16, history=25)
    tiny = scaled(Trace("t", 16, [one]), 0.001)
    assert (tiny.block_size, tiny.requests[0].input, tiny.requests[0].output) == (1, 6, 1)
    plain = scaled(Trace("t", 16, [replace(one, blocks=())]), 0.1)
    assert (plain.block_size, plain.requests[0].input, plain.requests[0].output) == (16, 10, 1)


BAD = '{"request_id": 1, "session_id": 1, "turn": 0, "timestamp_ms": 0, "input_length": "x"'


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["paper-trace-1"], "--rate X, in requests a second, or --sessions N is needed"),
        (["nowhere.jsonl"], "neither a file nor one of the profiles paper-trace-1"),
        (["BAD"], r"bad\.jsonl:1"),
        (["NO_GAPS"], "does not say how long clients thought: --dispatch trace"),
        (["NO_ARRIVALS"], "does not say when sessions began: --rate X"),
        (["GOOD", "--max-context", "9"], "nothing is left to replay"),
        (["GOOD", "--sessions", "3"], "--rate X --seconds S samples them"),
        (["GOOD", "--url", "localhost:80"], "http://HOST:PORT is expected"),
        (["GOOD", "--url", "http://127.0.0.1:99999"], "--url 'http://127.0.0.1:99999': Port out of range"),
        (["GOOD", "--url", "http://[::1"], "--url .*Invalid IPv6 URL"),
        (["GOOD", "--url", "http://a b"], "--url 'http://a b': http://HOST:PORT is expected"),
        (["GOOD", "--url", "http://127.0.0.1:1/v1?key=x"], "without a query"),
        (["GOOD", "--header", "x-team"], "NAME:VALUE is expected"),
        (["GOOD", "--header", "x team: blue"], "NAME:VALUE is expected"),
        (["GOOD", "--header", "x-team: blue\nx-other: red"], "--header .*: a value is one line"),
        (["GOOD", "--header", "Content-Length: 4"], "replay sets this one itself"),
        (["GOOD", "--instance-header", "x engine"], "--instance-header 'x engine': the name of a header"),
        (["GOOD", "--header", "x-team: \udcff"], "--header .*: UTF-8 is expected"),
        (["GOOD", "--label", "\udcff"], "--label .*: UTF-8 is expected"),
        (["GOOD", "--access-log", "no.log"], "No such file"),
        (["GOOD", "--model-dir", "no-model"], "--model-dir no-model: "),
        (["GOOD", "--warmup", "10", "--duration", "5"], "--warmup 10"),
        (["GOOD", "--out", "GOOD"], "File exists"),
    ],
)
async def test_what_cannot_be_is_explained(
    server: ChatServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], words: str
) -> None:
    """Options that do not go together, and files that are not what they should be, are errors that say what to do."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").write_text(BAD)
    follow_up = replace(PAIR.requests[1], gap_s=None)
    files = {
        "BAD": tmp_path / "bad.jsonl",
        "GOOD": written(tmp_path / "good.jsonl", PAIR),
        "NO_GAPS": written(tmp_path / "no-gaps.jsonl", trace(PAIR.requests[0], follow_up)),
        "NO_ARRIVALS": written(tmp_path / "no-arrivals.jsonl", replace(PAIR, facts=PAIR.facts - {Fact.ARRIVALS})),
    }
    given = [files.get(option, option) for option in options]
    with pytest.raises(CommandError, match=words):
        await asyncio.to_thread(run, "--url", server.url, "--out", "out", *given)
    assert not server.bodies


@pytest.mark.parametrize(
    "option", ["--speed=0", "--closed=0", "--scale=nan", "--dispatch=later", "--export=parquet", "--warmup=nan"]
)
def test_wrong_usage(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Values that no option can have are wrong usage."""
    with pytest.raises(SystemExit, match="2"):
        run("GOOD", "--out", "out", option)
    assert option.partition("=")[0] in capsys.readouterr().err


async def test_a_gateway_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that accepts connections and says nothing is given up after a moment."""
    monkeypatch.setattr(replay_run, "PROBE_S", 0.2)
    path = written(tmp_path / "t.jsonl", PAIR)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(CommandError, match="no answer within"):
        await asyncio.to_thread(
            run, path, "--url", f"http://127.0.0.1:{silent.getsockname()[1]}", "--out", tmp_path / "out"
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (200, "[]"),
        (200, '{"data": []}'),
        (200, "no JSON"),
        (200, '{"data": [{"id": 3}]}'),
        (404, '{"data": [{"id": "x"}]}'),
    ],
)
async def test_a_gateway_without_names_is_used(server: ChatServer, tmp_path: Path, status: int, answer: str) -> None:
    """Where the gateway does not say what it serves, requests name no model."""
    server.models_status, server.models_answer = status, answer
    path = written(tmp_path / "t.jsonl", PAIR)
    assert await asyncio.to_thread(run, path, "--url", server.url, "--out", tmp_path / "out") == 0
    assert all("model" not in body for body in server.bodies.values())
