"""/v1/messages: Anthropic's blocks become a chat, and answers are blocks again."""

from __future__ import annotations

import json

from loadgen.engine.api_parts import Api, Body, Event, Stream, copied, listed
from loadgen.engine.completion import Completion, Sample
from loadgen.json_types import Json

BILLING = "x-anthropic-billing-header"  # Claude Code's: vLLM leaves such a text out, for it differs at every request
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def from_messages(body: Body) -> dict[str, Json]:
    """The chat of a request, of one for a count of tokens too."""
    messages: list[Json] = []
    if system := _system(body.get("system")):
        messages.append({"role": "system", "content": system})
    for message in listed(body, "messages"):
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        chat: dict[str, Json] = {"role": message["role"], "content": []}
        for block in blocks:
            _read(block, chat, messages)
        if chat["content"] or message["role"] == "assistant":
            messages.append(chat)
    tools = [_tool(tool) for tool in body.get("tools") or ()]
    made: dict[str, Json] = {"messages": messages, **({"tools": tools} if tools else {})}
    if (choice := body.get("tool_choice")) is not None:
        made["tool_choice"] = _choice(choice)
    return made | copied(body, model="model", max_tokens="max_tokens", stream="stream", cache_salt="cache_salt")


def _system(given: Json) -> str:
    if not given:
        return ""
    texts = [given] if isinstance(given, str) else [block["text"] for block in given]
    return "".join(text for text in texts if isinstance(given, str) or not text.startswith(BILLING))


def _read(block: Json, chat: dict[str, Json], before: list[Json]) -> None:
    """Add a block to its message, or as a message before it."""
    kind = block["type"]
    if kind == "text":
        chat["content"].append({"type": "text", "text": block["text"]})
    elif kind == "image":
        chat["content"].append(_image(block["source"]))
    elif kind == "tool_use":
        function = {"name": block["name"], "arguments": json.dumps(block["input"])}
        chat.setdefault("tool_calls", []).append({"id": block["id"], "type": "function", "function": function})
    elif kind == "tool_result":
        before += _result(block["tool_use_id"], block.get("content") or "")


def _result(call: str, content: Json) -> list[Json]:
    """The text of a tool's result, and its images as if the user had sent them."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    images = [_image(part["source"]) for part in parts if part["type"] == "image"]
    result = {"role": "tool", "tool_call_id": call, "content": text}
    return [result, *([{"role": "user", "content": images}] if images else [])]


def _image(source: Json) -> Json:
    url = source["url"] if source["type"] == "url" else f"data:{source['media_type']};base64,{source['data']}"
    return {"type": "image_url", "image_url": {"url": url}}


def _tool(tool: Json) -> Json:
    schema = tool["input_schema"]
    parameters = schema if "type" in schema else {"type": "object"} | schema
    function = {"name": tool["name"], "description": tool.get("description"), "parameters": parameters}
    return {"type": "function", "function": function}


def _choice(choice: Json) -> Json:
    if choice["type"] == "tool":
        return {"type": "function", "function": {"name": choice["name"]}}
    return {"auto": "auto", "any": "required", "none": "none"}[choice["type"]]


def _answer(completion: Completion, _asked: Body) -> dict[str, Json]:
    return _message(completion, [_block(completion)], _REASONS[completion.reply.finish], _usage(completion))


def _message(completion: Completion, content: list[Json], reason: str | None, usage: Json) -> dict[str, Json]:
    made = {"id": completion.id, "type": "message", "role": "assistant", "content": content, "model": completion.model}
    return made | {"stop_reason": reason, "stop_sequence": None, "usage": usage}


def _block(completion: Completion) -> Json:
    if call := completion.reply.call:
        return {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
    return {"type": "text", "text": completion.sample.text()}


def _usage(completion: Completion) -> dict[str, Json]:
    request = completion.request
    return {
        "input_tokens": request.prompt - completion.cacheable,
        "output_tokens": request.reply,
        "cache_creation_input_tokens": completion.created,
        "cache_read_input_tokens": completion.hit,
    }


class _Events(Stream):
    """The message begins, its one block is opened, filled and closed, the reason of the end, the end."""

    def opening(self) -> list[Event]:
        usage = {"input_tokens": self.completion.request.prompt, "output_tokens": 0}
        return [{"type": "message_start", "message": _message(self.completion, [], None, usage)}]

    def advance(self, sample: Sample, before: int, sampled: int) -> list[Event]:
        events: list[Event] = []
        ended = sampled == sample.request.reply
        block: Event = _block(self.completion)
        text = sample.text(before, sampled)
        if block["type"] == "text":
            if not before:
                events.append({"type": "content_block_start", "index": 0, "content_block": block | {"text": ""}})
            if text:
                events.append(_delta({"type": "text_delta", "text": text}))
        elif ended and sample.reply.call:
            events.append({"type": "content_block_start", "index": 0, "content_block": block | {"input": {}}})
            events.append(_delta({"type": "input_json_delta", "partial_json": sample.reply.call.arguments}))
        if ended:
            events.append({"type": "content_block_stop", "index": 0})
        return events

    def closing(self) -> list[Event]:
        reason = {"stop_reason": _REASONS[self.completion.reply.finish]}
        return [{"type": "message_delta", "delta": reason, "usage": _usage(self.completion)}, {"type": "message_stop"}]


def _delta(delta: Event) -> Event:
    return {"type": "content_block_delta", "index": 0, "delta": delta}


API = Api(prefix="msg_", chat=from_messages, answer=_answer, stream=_Events, named=True)
