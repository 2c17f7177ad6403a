"""The replay against a scripted server: what it sends when, what it makes of answers, what it writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from loadgen.records import Row
from loadgen.replay import PARENT_FAILED, UNFINISHED, Options, Replay
from loadgen.scenario import Dispatch
from loadgen.streaming import connect
from loadgen.trace import Trace, TraceRequest, Trigger
from tests.loadgen.chat_server import INSTANCE, ChatServer, Words, chat_server

CALL = {"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def request(name: str, parent: str | None = None, **fields: Any) -> TraceRequest:
    """Request `name`, whose session is what stands before the slash."""
    session, _, turn = name.partition("/")
    given = {"turn": int(turn or 0), "arrival_s": 0.0, "input": 40, "output": 3, "gap_s": 0.0 if parent else None}
    return TraceRequest(id=name, session=session, parent=parent, **{**given, **fields})


def trace(*requests: TraceRequest) -> Trace:
    return Trace("made up", 16, requests)


@pytest.fixture
async def server() -> AsyncIterator[ChatServer]:
    async with chat_server() as server:
        yield server


async def replay(
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
    rows = await replay(server, trace(*(request(name, arrival_s=at) for name, at in times.items())), speed=2.0)
    assert [rows[name].due_s for name in times] == pytest.approx([0.0, 0.1, 0.2])
    assert all(row.sent_s >= row.due_s - 0.002 for row in rows.values())
    assert server.most_open == set(times)


async def test_think_counts_from_the_real_end(server: ChatServer) -> None:
    """With dispatch `think` a follow-up is due its gap, divided by the speed, after the parent's last token."""
    given = trace(request("a/0"), request("a/1", "a/0", arrival_s=50.0, gap_s=0.2))
    rows = await replay(server, given, speed=2.0)
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
    rows = await replay(server, given, dispatch=Dispatch.TRACE)
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
    await replay(server, given, {"g/1": 3})
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
    await replay(server, trace(request("a/0", output=7)), model="tiny")
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


async def test_rows_say_what_happened(server: ChatServer) -> None:
    """A row has what the workload asked for, what usage and headers said, and times in their order."""
    rows = await replay(server, trace(request("a/0", trigger=Trigger.USER, output=5)))
    row = rows["a/0"]
    assert (row.session, row.turn, row.trigger, row.output) == ("a", 0, "user", 5)
    assert (row.input, row.produced, row.local, row.instance, row.status) == (20, 3, 10, INSTANCE, 200)
    assert row.ok
    assert row.first_s is not None
    assert row.end_s is not None
    assert row.due_s <= row.sent_s + 0.002 <= row.first_s + 0.002 <= row.end_s + 0.002


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
    rows = await replay(server, given)
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
    rows = await replay(server, trace(*sessions, *follow_ups, request("f/1", "e/0", arrival_s=9000.0)), closed=2)
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
        request("c/0", arrival_s=3.0),
    )
    rows = await replay(server, given, until_s=0.15)
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
    await replay(server, trace(request("a b&c/0")), tag="t1")
    assert server.paths["a b&c/0"] == "/v1/chat/completions?request=t1/a%20b%26c/0"
