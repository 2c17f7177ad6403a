"""A scripted chat server, for tests of clients: streams what the test says and keeps what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from loadgen.replay.chat_request import CHAT
from loadgen.replay.script import Turn
from loadgen.workloads.trace import TraceRequest, Trigger

REPLY = ({"role": "assistant", "content": ""}, {"content": " so"}, {"content": " be"}, {"content": " it"})
USED = 4  # tokens of any reply, the end of the turn included
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
INSTANCE = "10.0.0.1:8000"


class Words:
    """A script that says each request's id, and offers a tool where the request does. A compaction keeps the system
    prompt, `keep` says otherwise by id."""

    def __init__(self, keep: Mapping[str, int] | None = None) -> None:
        self._keep = keep or {}
        self._asked: set[str | None] = {None}

    def ask(self, request: TraceRequest) -> Turn:
        assert request.parent in self._asked, "a parent must be asked for before its children"
        self._asked.add(request.id)
        said = {"role": "user", "content": request.id}
        tools = [TOOL] if request.tools else []
        if request.parent is None:
            return Turn(0, [{"role": "system", "content": "system"}, said], tools)
        kept = 1 if request.trigger is Trigger.COMPACTION else 1_000
        return Turn(self._keep.get(request.id, kept), [said], tools)


class ChatServer:
    """`bodies` and `paths` by the last words of the chat, which are the id of the request where `Words` said them.

    The test sets: `reply` (deltas, by id, REPLY where it says nothing), `status` (by id, else `default_status`), `cut`
    (ids whose answer ends in the middle), `held` (ids whose answer never ends), `hold_s` (until an answer's headers),
    `think_s` (from there to its first token), `end` (of a stream), `junk` (in place of an answer that does not stream),
    `models_answer`, `models_status`, and `on_ask`, which hears the path of each request.
    """

    def __init__(self) -> None:
        self.bodies: dict[str, dict[str, Any]] = {}
        self.paths: dict[str, str] = {}
        self.headers: dict[str, Mapping[str, str]] = {}
        self.reply: dict[str, Sequence[Mapping[str, Any]]] = {}
        self.status: dict[str, int] = {}
        self.default_status = 200
        self.cut: set[str] = set()
        self.held: set[str] = set()
        self.hold_s = self.think_s = 0.0
        self.end = b"data: [DONE]\n\n"
        self.junk: bytes | None = None
        self.open: set[str] = set()
        self.most_open: set[str] = set()
        self.models_answer = '{"data": [{"id": "tiny"}]}'
        self.models_status = 200
        self.on_ask: Callable[[str], None] = lambda path: None
        self.url = ""

    def said(self, name: str) -> list[str]:
        """The words of a request's messages, replies included."""
        return [message["content"] or "" for message in self.bodies[name]["messages"]]

    async def models(self, _request: web.Request) -> web.Response:
        return web.Response(text=self.models_answer, status=self.models_status)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        name = body["messages"][-1]["content"]
        self.bodies[name], self.paths[name], self.headers[name] = body, request.path_qs, request.headers
        self.on_ask(request.path_qs)
        self.open.add(name)
        if len(self.open) > len(self.most_open):
            self.most_open = set(self.open)
        try:
            await asyncio.sleep(self.hold_s)
            if (status := self.status.get(name, self.default_status)) != 200:
                return web.json_response({"error": {"message": "no room"}}, status=status)
            if not body["stream"]:
                return self._whole(name, len(body["messages"]))
            return await self._stream(request, name, len(body["messages"]))
        finally:
            self.open.discard(name)

    async def _stream(self, request: web.Request, name: str, messages: int) -> web.StreamResponse:
        response = web.StreamResponse(headers={"x-engine": INSTANCE})
        await response.prepare(request)
        await response.write(b": no token yet\n\n")
        await asyncio.sleep(self.think_s)
        for delta in self.reply.get(name, REPLY):
            await response.write(_event({"choices": [{"delta": delta}]}))
        if name in self.held:
            await asyncio.sleep(60)
        if name in self.cut:
            assert request.transport
            request.transport.close()
            return response
        await response.write(_event({"choices": [], "usage": _usage(messages)}) + self.end)
        return response

    def _whole(self, name: str, messages: int) -> web.Response:
        message: dict[str, Any] = {"role": "assistant", "content": None}
        for delta in self.reply.get(name, REPLY):
            message["content"] = (message["content"] or "") + (delta.get("content") or "")
            message |= {"tool_calls": delta["tool_calls"]} if "tool_calls" in delta else {}
        answer = {"choices": [{"message": message}], "usage": _usage(messages)}
        body = json.dumps(answer).encode() if self.junk is None else self.junk
        return web.Response(body=body, headers={"x-engine": INSTANCE})


@asynccontextmanager
async def chat_server() -> AsyncIterator[ChatServer]:
    server = ChatServer()
    app = web.Application(client_max_size=2**26)
    app.router.add_post(CHAT, server.answer)
    app.router.add_get("/v1/models", server.models)
    running = TestServer(app)
    await running.start_server()
    server.url = str(running.make_url("")).rstrip("/")
    yield server
    await running.close()


def _usage(messages: int) -> dict[str, Any]:
    details = {"cached_tokens": 10 * messages - 10}
    return {"prompt_tokens": 10 * messages, "completion_tokens": USED, "prompt_tokens_details": details}


def _event(chunk: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"
