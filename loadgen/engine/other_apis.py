"""What a simulated vLLM speaks besides chats: text completions, Anthropic's messages, OpenAI's responses.

Requests become chats (or a plain prompt), which the engine serves as any other; only the answers look different. A
file an API, and a row of `APIS` here. Each reads as much as agents use, independently of `extproc` on purpose: where
both agree on a prompt, two readings of vLLM's rules agree. Stored responses live in this engine alone, as in vLLM.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Mapping

import msgspec
from aiohttp import web

from loadgen.engine import anthropic_api, completions_api, responses_api
from loadgen.engine.api_parts import Api, Body, text_of
from loadgen.engine.chat_api import ChatApi, parse
from loadgen.engine.clock import Engine
from loadgen.engine.errors import Refused, invalid
from loadgen.engine.transfer import Transfers
from loadgen.json_types import Json

MAX_STORED = 10_000  # responses


class OtherApis:
    """Their handlers; `add_to` an application."""

    def __init__(self, api: ChatApi, engine: Engine, transfers: Transfers) -> None:
        self._api = api
        self._engine = engine
        self._transfers = transfers
        self._stored: dict[str, list[Json]] = {}  # response id -> the messages up to its end

    def add_to(self, app: web.Application) -> None:
        """Serve the paths."""
        for path in APIS:
            app.router.add_post(path, self._serve)
        app.router.add_post("/v1/messages/count_tokens", self._count)
        app.router.add_get("/v1/responses/{id}", self._stored_response)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        api = APIS[request.path]
        body = parse(await request.read())
        chat = self._history(body) | _read(api.chat, body)
        if "messages" in chat:
            system = [m for m in chat["messages"] if m["role"] == "system"][:1]
            chat["messages"] = [*system, *chat.pop("before", ()), *chat["messages"][len(system) :]]
        identity = f"{api.prefix}{uuid.uuid4().hex[:16]}"
        completion = await asyncio.to_thread(self._api.start, chat, id=identity, created=int(time.time()))
        if api.prefix == "resp_" and body.get("store") is not False:
            reply = {"role": "assistant", "content": text_of(completion)}
            self._stored[identity] = [m for m in chat["messages"] if m["role"] != "system"] + [reply]
            if len(self._stored) > MAX_STORED:
                del self._stored[next(iter(self._stored))]
        async with (
            self._transfers.during(body, completion),
            contextlib.aclosing(self._engine.generate(completion.request)) as progress,
        ):
            if not completion.stream:
                async for _ in progress:
                    pass
                params = self._transfers.params(request, completion)
                return _json(api.answer(completion) | ({"kv_transfer_params": params} if params else {}))
            response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
            await response.prepare(request)
            await response.write(_events(api.first(completion)))
            before = 0
            async for sampled in progress:
                if text := "".join(completion.reply.pieces[before:sampled]):
                    await response.write(_events([api.delta(completion, text)]))
                before = sampled
            await response.write(_events(api.last(completion)))
            await response.write_eof()
            return response

    async def _count(self, request: web.Request) -> web.Response:
        chat = _read(anthropic_api.from_messages, parse(await request.read()))
        tokens = await asyncio.to_thread(self._api.prompt, chat)
        return _json({"input_tokens": len(tokens)})

    async def _stored_response(self, request: web.Request) -> web.Response:
        if request.match_info["id"] not in self._stored:
            raise Refused(404, "NotFoundError", "Response with id does not exist.", "response_id")
        return _json({"id": request.match_info["id"], "object": "response", "status": "completed"})

    def _history(self, body: Body) -> dict[str, Json]:
        previous = body.get("previous_response_id")
        if previous is None:
            return {}
        if previous not in self._stored:
            raise Refused(404, "NotFoundError", f"Response with id '{previous}' not found.", "previous_response_id")
        return {"before": self._stored[previous]}


def _read(chat: Callable[[Body], dict[str, Json]], body: Body) -> dict[str, Json]:
    try:
        return chat(body)
    except (AttributeError, KeyError, TypeError) as error:
        raise invalid(f"the body is no request of this API ({type(error).__name__}: {error})") from error


def _events(events: list[dict[str, Json]]) -> bytes:
    lines = (
        (f"event: {event['type']}\n".encode() if "type" in event else b"")
        + b"data: "
        + msgspec.json.encode(event)
        + b"\n\n"
        for event in events
    )
    return b"".join(lines)


def _json(value: Json) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


APIS: Mapping[str, Api] = {
    "/v1/completions": completions_api.API,
    "/v1/messages": anthropic_api.API,
    "/v1/responses": responses_api.API,
}
