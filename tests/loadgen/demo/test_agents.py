"""The client against a scripted server: what it sends next, and what it makes of servers that misbehave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from loadgen.demo import agents, sessions
from loadgen.demo.agents import Record

USAGE = {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}


class Script:
    """A server that answers with what the test says, and keeps what it was asked."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.answers: list[list[dict[str, Any]]] = []
        self.ending = b"data: [DONE]\n\n"
        self.status = 200
        self.open = 0
        self.most_open = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(json.loads(await request.read()))
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        await asyncio.sleep(0.01)
        self.open -= 1
        if self.status != 200:
            return web.json_response({"error": {"message": "no room"}}, status=self.status)
        response = web.StreamResponse(headers={"x-engine": "10.0.0.1:8000"})
        if not self.bodies[-1]["stream"]:
            return web.Response(body=self.ending, headers=response.headers)
        await response.prepare(request)
        deltas = self.answers[min(len(self.bodies), len(self.answers)) - 1]
        chunks = [{"choices": [{"delta": delta}]} for delta in deltas] + [{"choices": [], "usage": USAGE}]
        for chunk in chunks:
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        if self.ending:
            await response.write(self.ending)
        else:
            assert request.transport
            request.transport.close()
        return response


@pytest.fixture
async def script() -> AsyncIterator[tuple[Script, str]]:
    script = Script()
    app = web.Application(client_max_size=2**26)
    app.router.add_post(agents.CHAT, script.answer)
    server = TestServer(app)
    await server.start_server()
    yield script, str(server.make_url("/"))
    await server.close()


async def test_follow_ups_carry_the_real_answers(script: tuple[Script, str]) -> None:
    """Text and tool calls of an answer, however they were cut into chunks, stand in the next request's history; a call
    is followed by its result, a text by a user's message."""
    server, url = script
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
    more = [{"index": 0, "function": {"arguments": part}} for part in ('{"a"', ": 1}")]
    server.answers = [
        [{"role": "assistant", "content": ""}, {"tool_calls": [call]}, *({"tool_calls": [part]} for part in more)],
        [{"role": "assistant", "content": " two"}, {"content": " words"}],
    ]
    (session,) = sessions.sessions(1, 3, 100)
    records = await agents.run(url, [session])
    assert [record.error for record in records] == [None] * 3
    history = server.bodies[2]["messages"]
    function = {"name": "f", "arguments": '{"a": 1}'}
    assert history == [
        {"role": "system", "content": session.system},
        {"role": "user", "content": session.turns[0].text},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "content": session.turns[1].text},
        {"role": "assistant", "content": " two words"},
        {"role": "user", "content": session.turns[2].text},
    ]
    assert server.bodies[0]["tools"] == session.tools


async def test_compaction_drops_the_history(script: tuple[Script, str]) -> None:
    """A compacted turn sends the system prompt and a summary, and no reply that came before."""
    server, url = script
    server.answers = [[{"content": " word"}]]
    await agents.run(url, sessions.sessions(1, 3, 100, compact_every=2))
    assert [len(body["messages"]) for body in server.bodies] == [2, 4, 2]


async def test_records_say_what_happened(script: tuple[Script, str]) -> None:
    """A record has the engine's name, usage and times; `on_record` sees each as it comes."""
    server, url = script
    server.answers = [[{"content": " word"}]]
    seen: list[Record] = []
    records = await agents.run(url, sessions.sessions(2, 2, 100), on_record=seen.append)
    assert seen == records
    for one in records:
        assert (one.status, one.instance, one.error) == (200, "10.0.0.1:8000", None)
        assert (one.prompt_tokens, one.cached_tokens, one.completion_tokens) == (10, 8, 2)
        assert one.ttft_s is not None
        assert one.latency_s is not None
        assert 0 < one.ttft_s <= one.latency_s
    assert sorted((one.session, one.turn) for one in records) == [("s0", 0), ("s0", 1), ("s1", 0), ("s1", 1)]


@pytest.mark.parametrize(
    ("status", "ending", "word"),
    [
        (503, b"", "no room"),
        (200, b"", "ClientPayloadError"),
        (200, b"\n", "too early"),
        (200, b"data: [1]\n\n", "ValidationError"),
        (200, b"data: {nonsense\n\n", "malformed"),
        (200, b'data: {"error": {"message": "engine died"}}\n\ndata: [DONE]\n\n', "engine died"),
    ],
)
async def test_failures_are_recorded_and_end_the_session(
    script: tuple[Script, str], status: int, ending: bytes, word: str
) -> None:
    """Whatever a server does wrong is an error in the record, never an exception, and the session stops there."""
    server, url = script
    server.answers, server.status, server.ending = [[{"content": " word"}]], status, ending
    records = await agents.run(url, sessions.sessions(3, 4, 100))
    assert len(records) == 3
    for one in records:
        assert not one.ok
        assert word in (one.error or "")
        assert one.status == status


async def test_a_stream_may_end_without_a_newline(script: tuple[Script, str]) -> None:
    """What stands after the last newline of a stream counts."""
    server, url = script
    server.answers, server.ending = [[{"content": " word"}]], b"data: [DONE]"
    (record,) = await agents.run(url, sessions.sessions(1, 1, 100))
    assert record.ok


async def test_whole_answers_are_understood(script: tuple[Script, str]) -> None:
    """Without streaming, text and tool calls go into the history too, usage into the record; and junk is an error."""
    server, url = script
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    server.ending = json.dumps({"choices": [{"message": message}], "usage": USAGE}).encode()
    records = await agents.run(url, sessions.sessions(1, 2, 100), stream=False)
    assert [(record.error, record.cached_tokens, record.ttft_s) for record in records] == [(None, 8, None)] * 2
    assert server.bodies[1]["messages"][2] == message
    for junk in (b"", b"[1]", b"{}", b'{"choices": []}'):
        server.ending = junk
        (record,) = await agents.run(url, sessions.sessions(1, 2, 100), stream=False)
        assert record.error


async def test_an_unreachable_server_is_recorded() -> None:
    """Nobody there: one failed record a session, without a status."""
    (record,) = await agents.run("http://127.0.0.1:1", sessions.sessions(1, 2, 100))
    assert record.status is None
    assert record.error


async def test_concurrency_is_a_limit(script: tuple[Script, str]) -> None:
    """At most so many sessions run at a time, and by default all of them do."""
    server, url = script
    server.answers = [[{"content": " word"}]]
    await agents.run(url, sessions.sessions(6, 2, 100), concurrency=2)
    assert server.most_open == 2
    await agents.run(url, sessions.sessions(6, 2, 100))
    assert server.most_open > 2


async def test_large_histories_are_sent(script: tuple[Script, str]) -> None:
    """A request of several megabytes is sent whole."""
    server, url = script
    server.answers = [[{"content": " word"}]]
    (session,) = sessions.sessions(1, 1, 100)
    turn = replace(session.turns[0], text="x" * 5_000_000)
    (record,) = await agents.run(url, [replace(session, turns=[turn])])
    assert record.ok
    assert server.bodies[0]["messages"][1]["content"] == turn.text
