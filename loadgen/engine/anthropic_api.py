"""/v1/messages: Anthropic's blocks become a chat, and answers are blocks again."""

from __future__ import annotations

import json

from loadgen.engine.api_parts import Api, Body, listed, text_of
from loadgen.engine.completion import Completion
from loadgen.json_types import Json


def from_messages(body: Body) -> dict[str, Json]:
    messages: list[Json] = []
    system = body.get("system")
    if system:
        text = system if isinstance(system, str) else "".join(block["text"] for block in system)
        messages.append({"role": "system", "content": text})
    for message in listed(body, "messages"):
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        chat: dict[str, Json] = {"role": message["role"], "content": []}
        for block in blocks:
            kind = block["type"]
            if kind == "text":
                chat["content"].append({"type": "text", "text": block["text"]})
            elif kind == "image":
                chat["content"].append(_image(block["source"]))
            elif kind == "tool_use":
                function = {"name": block["name"], "arguments": json.dumps(block["input"])}
                chat.setdefault("tool_calls", []).append({"id": block["id"], "type": "function", "function": function})
            elif kind == "tool_result":
                messages += _result(block["tool_use_id"], block.get("content") or "")
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
        "content": [{"type": "text", "text": text_of(completion)}],
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


API = Api(
    "msg_",
    from_messages,
    _anthropic,
    _anthropic_first,
    lambda _, text: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
    _anthropic_last,
)
