"""What a simulated vLLM speaks besides chats: text completions, Anthropic's messages, OpenAI's responses.

Requests become chats (or a plain prompt), which the engine serves as any other; only the answers look different. It
reads as much of each API as agents use, independently of `extproc` on purpose: where both agree on a prompt, two
readings of vLLM's rules agree. Stored responses live in this engine alone, as in vLLM.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from loadgen.engine.chat_api import ChatApi, Completion, parse
from loadgen.engine.clock import Engine
from loadgen.engine.errors import Refused, invalid
from loadgen.engine.transfer import Transfers
from loadgen.json_types import Json

Body = Mapping[str, Json]
MAX_STORED = 10_000  # responses


@dataclass(frozen=True, slots=True)
class _Api:
    """One path: how its requests become chats, and its answers' ids, bodies and events."""

    prefix: str  # of an answer's id
    chat: Callable[[Body], dict[str, Json]]
    answer: Callable[[Completion], dict[str, Json]]
    first: Callable[[Completion], list[dict[str, Json]]]  # events before the first token
    delta: Callable[[Completion, str], dict[str, Json]]
    last: Callable[[Completion], list[dict[str, Json]]]


class OtherApis:
    """Their handlers; `add_to` an application."""

    def __init__(self, api: ChatApi, engine: Engine, transfers: Transfers) -> None:
        self._api = api
        self._engine = engine
        self._transfers = transfers
        self._stored: dict[str, list[Json]] = {}  # response id -> the messages up to its end

    def add_to(self, app: web.Application) -> None:
        """Serve the paths."""
        for path in _APIS:
            app.router.add_post(path, self._serve)
        app.router.add_post("/v1/messages/count_tokens", self._count)
        app.router.add_get("/v1/responses/{id}", self._stored_response)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        api = _APIS[request.path]
        body = parse(await request.read())
        chat = self._history(body) | _read(api.chat, body)
        if "messages" in chat:
            system = [m for m in chat["messages"] if m["role"] == "system"][:1]
            chat["messages"] = [*system, *chat.pop("before", ()), *chat["messages"][len(system) :]]
        identity = f"{api.prefix}{uuid.uuid4().hex[:16]}"
        completion = await asyncio.to_thread(self._api.start, chat, id=identity, created=int(time.time()))
        if api.prefix == "resp_" and body.get("store") is not False:
            reply = {"role": "assistant", "content": _text(completion)}
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
        chat = _read(_from_messages, parse(await request.read()))
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


def _text(completion: Completion) -> str:
    return "".join(completion.reply.pieces)


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


# Text completions


def _from_completions(body: Body) -> dict[str, Json]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise invalid("the simulated engine takes one prompt", "prompt")
        prompt = prompt[0]
    if not isinstance(prompt, str | list) or not prompt:
        raise invalid("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if isinstance(prompt, list) and not all(isinstance(token, int) and 0 <= token < 2**31 for token in prompt):
        raise invalid("a prompt is a text or a list of token ids", "prompt")
    return {name: value for name, value in body.items() if name != "messages"} | {"prompt": prompt}


def _text_completion(completion: Completion, text: str, finish: str | None) -> dict[str, Json]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    return {
        "id": completion.id,
        "object": "text_completion",
        "created": completion.created,
        "model": completion.model,
        "choices": [choice],
    }


def _completed(completion: Completion) -> dict[str, Json]:
    answer = _text_completion(completion, _text(completion), completion.reply.finish)
    return answer | {"usage": completion.message()["usage"]}


# Anthropic's messages


def _from_messages(body: Body) -> dict[str, Json]:
    messages: list[Json] = []
    system = body.get("system")
    if system:
        text = system if isinstance(system, str) else "".join(block["text"] for block in system)
        messages.append({"role": "system", "content": text})
    for message in _list(body, "messages"):
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        chat: dict[str, Json] = {"role": message["role"], "content": []}
        for block in blocks:
            kind = block["type"]
            if kind == "text":
                chat["content"].append({"type": "text", "text": block["text"]})
            elif kind == "tool_use":
                function = {"name": block["name"], "arguments": json.dumps(block["input"])}
                chat.setdefault("tool_calls", []).append({"id": block["id"], "type": "function", "function": function})
            elif kind == "tool_result":
                result = block.get("content") or ""
                text = result if isinstance(result, str) else "\n".join(part["text"] for part in result)
                messages.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": text})
        if chat["content"] or message["role"] == "assistant":
            messages.append(chat)
    tools = [
        {
            "type": "function",
            "function": {"name": t["name"], "description": t.get("description")}
            | {
                "parameters": {"type": "object"} | t["input_schema"]
                if "type" not in t["input_schema"]
                else t["input_schema"]
            },
        }
        for t in body.get("tools") or ()
    ]
    chat_body: dict[str, Json] = {"messages": messages, **({"tools": tools} if tools else {})}
    return chat_body | {name: body[name] for name in ("model", "max_tokens", "stream", "cache_salt") if name in body}


def _anthropic_usage(completion: Completion) -> dict[str, Json]:
    request = completion.request
    fresh = request.prompt - completion.cacheable
    return {
        "input_tokens": fresh,
        "output_tokens": request.reply,
        "cache_creation_input_tokens": completion.cacheable - request.hit,
        "cache_read_input_tokens": request.hit,
    }


def _anthropic(completion: Completion) -> dict[str, Json]:
    stop = "max_tokens" if completion.reply.finish == "length" else "end_turn"
    return {
        "id": completion.id,
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": _text(completion)}],
        "model": completion.model,
        "stop_reason": stop,
        "usage": _anthropic_usage(completion),
    }


def _anthropic_first(completion: Completion) -> list[dict[str, Json]]:
    message = _anthropic(completion) | {"content": [], "stop_reason": None}
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    return [{"type": "message_start", "message": message}, block]


def _anthropic_last(completion: Completion) -> list[dict[str, Json]]:
    whole = _anthropic(completion)
    delta = {"type": "message_delta", "delta": {"stop_reason": whole["stop_reason"]}, "usage": whole["usage"]}
    return [{"type": "content_block_stop", "index": 0}, delta, {"type": "message_stop"}]


# OpenAI's responses


def _from_responses(body: Body) -> dict[str, Json]:
    messages: list[Json] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    given = body.get("input")
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else _list(body, "input"):
        last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
        kind = item.get("type", "message")
        if kind == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            if last is None:
                messages.append(last := {"role": "assistant", "content": None})
            last.setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
        elif kind == "message":
            messages.append({"role": item["role"], "content": item["content"]})
    tools = [{"type": "function", "function": tool} for tool in body.get("tools") or ()]
    chat: dict[str, Json] = {"messages": messages, **({"tools": tools} if tools else {})}
    if "max_output_tokens" in body:
        chat["max_tokens"] = body["max_output_tokens"]
    return chat | {name: body[name] for name in ("model", "stream", "cache_salt") if name in body}


def _response(completion: Completion, status: str = "completed") -> dict[str, Json]:
    content = [{"type": "output_text", "text": _text(completion), "annotations": []}]
    message = {"type": "message", "id": "msg_0", "role": "assistant", "status": "completed", "content": content}
    request = completion.request
    details = {"cached_tokens": request.hit, "cache_write_tokens": completion.cacheable - request.hit}
    usage = {"input_tokens": request.prompt, "input_tokens_details": details, "output_tokens": request.reply}
    return {
        "id": completion.id,
        "created_at": completion.created,
        "model": completion.model,
        "object": "response",
        "output": [message],
        "status": status,
        "usage": usage,
    }


def _response_first(completion: Completion) -> list[dict[str, Json]]:
    begun = _response(completion, "in_progress") | {"output": [], "usage": None}
    return [{"type": "response.created", "response": begun}]


def _list(body: Body, field: str) -> list[Any]:
    value = body.get(field)
    if not isinstance(value, list):
        raise invalid("a list is expected", field)
    return value


_APIS: Mapping[str, _Api] = {
    "/v1/completions": _Api(
        "cmpl-",
        _from_completions,
        _completed,
        lambda _: [],
        lambda completion, text: _text_completion(completion, text, None),
        lambda completion: [_text_completion(completion, "", completion.reply.finish)],
    ),
    "/v1/messages": _Api(
        "msg_",
        _from_messages,
        _anthropic,
        _anthropic_first,
        lambda _, text: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        _anthropic_last,
    ),
    "/v1/responses": _Api(
        "resp_",
        _from_responses,
        _response,
        _response_first,
        lambda _, text: {"type": "response.output_text.delta", "delta": text},
        lambda completion: [{"type": "response.completed", "response": _response(completion)}],
    ),
}
