"""OpenAI's Responses API: its body -> the chat request that vLLM 0.32 makes of it, and the ids of stored responses.

Owns the items of `input`, and where a response's id stands in what an engine answers. Refuses to know templates.
Models of the Harmony format (gpt-oss), which vLLM renders without a chat template, are not for this module.
Raises `UnreadableBody` for what is no such request, `BodyTooCostly` for too much of it, and nothing else.
"""

from __future__ import annotations

import json
import re
from typing import Any

from extproc.base.errors import UnreadableBody
from extproc.requests import limits
from extproc.requests.chat import Json
from extproc.requests.paths import MAX_ID

# A response's id stands in the first field of an answer, or in the first event of a stream. Whatever is longer than
# this without one is no answer of vLLM's.
HEAD_BYTES = 16_384

_MAX_NAMESPACE = 256  # characters, of which OpenAI allows 64: the name is put before that of each function in it

_ID = re.compile(rb'"id"\s*:\s*"([\x21\x23-\x5b\x5d-\x7e]{1,%d})"' % MAX_ID)
_PARTIAL = frozenset({"in_progress", "incomplete"})
_CUSTOM_INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The freeform text payload for this tool."}},
    "required": ["input"],
    "additionalProperties": False,
}


def chat(body: Json) -> Json:
    """The body of the chat completion that renders to the same prompt.

    Of a request with `previous_response_id` it is only the end: what came before is known to one engine alone.
    """
    messages: list[Json] = []
    if instructions := _text(body, "instructions"):
        messages.append({"role": "system", "content": instructions})
    given = body.get("input")
    continues = False
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    elif isinstance(given, list):
        messages += _messages(given)
        continues = bool(given) and _is_partial(given[-1])
    else:
        raise UnreadableBody("`input` is neither text nor a list of items")
    reasoning = body.get("reasoning")
    converted: Json = {
        "messages": messages,
        "tools": _tools(body.get("tools")),
        "add_generation_prompt": not continues,
        "continue_final_message": continues,
        "reasoning_effort": _text(reasoning, "effort") if isinstance(reasoning, dict) else None,
        "add_special_tokens": True,  # vLLM's default wherever an API does not say otherwise; chat completions do
    }
    for name in ("model", "cache_salt", "stream", "chat_template_kwargs"):
        converted[name] = body.get(name)
    return converted


class IdReader:
    """Finds the id of a response in the first bytes of an engine's answer, streamed or whole."""

    def __init__(self) -> None:
        self._head = b""

    def feed(self, data: bytes) -> str | None:
        """The id, once it has come; None before."""
        self._head += data[: HEAD_BYTES - len(self._head)]
        found = _ID.search(self._head)
        return found[1].decode() if found else None

    @property
    def hopeless(self) -> bool:
        """Nothing more is worth reading."""
        return len(self._head) >= HEAD_BYTES


def _messages(items: list[Any]) -> list[Json]:
    """Reasoning, text and calls of one reply are items of their own; as far as they follow each other they are one
    message."""
    messages: list[Json] = []
    for item in limits.bounded(items, limits.MESSAGES, "items"):
        if not isinstance(item, dict):
            raise UnreadableBody("an item of `input` is not an object")
        name, value = _of_reply(item)
        last = messages[-1] if messages and messages[-1].get("role") == "assistant" else None
        if name is None:
            messages.append(_other(item))
        elif name == "tool_calls" and last is not None and isinstance(last.get(name), list):
            last[name].append(value)
        elif name == "tool_calls" and last is not None and last.get(name) is None:
            last[name] = [value]
        elif last is not None and last.get(name) is None:
            last[name] = value
        else:
            messages.append({"role": "assistant", name: [value] if name == "tool_calls" else value})
    return messages


def _of_reply(item: Json) -> tuple[str | None, Any]:
    """Which field of an assistant's message an item is, and its value; None for another message."""
    kind = item.get("type")
    if kind == "function_call":
        namespace, name = _text(item, "namespace"), _text(item, "name")
        return "tool_calls", _call(item, f"{namespace}__{name}" if namespace else name, item.get("arguments"))
    if kind == "custom_tool_call":
        payload = json.dumps({"input": item.get("input") or ""}, ensure_ascii=False)
        return "tool_calls", _call(item, _text(item, "name"), payload)
    if kind == "reasoning":
        if item.get("encrypted_content"):
            raise UnreadableBody("encrypted reasoning is for who encrypted it")
        return "reasoning", _first_text(item.get("content") or item.get("summary")) or ""
    if item.get("role") == "assistant":
        content = item.get("content")
        text = content if isinstance(content, str) else _first_text(content)
        if text is not None:
            return "content", text
    return None, None


def _call(item: Json, name: str | None, arguments: Any) -> Json:
    if name is None:
        raise UnreadableBody("a call has no name")
    return {"id": item.get("call_id"), "type": "function", "function": {"name": name, "arguments": arguments}}


def _other(item: Json) -> Json:
    if item.get("type") in ("function_call_output", "custom_tool_call_output"):
        return {"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")}
    if "role" in item:
        return item
    raise UnreadableBody("an item of `input` is of no known type")


def _first_text(parts: Any) -> str | None:
    """The text of the first part: vLLM reads no other."""
    if not isinstance(parts, list) or not parts:
        return None
    return _text(parts[0], "text") if isinstance(parts[0], dict) else None


def _is_partial(item: Json) -> bool:
    """Whether the engine is to go on with the last message instead of answering it."""
    return item.get("type", "message") in ("message", "reasoning") and item.get("status") in tuple(_PARTIAL)


def _tools(raw: Any) -> list[Json] | None:
    """Functions, and what vLLM shows as functions; tools that it runs itself are not in the prompt."""
    if raw is None:
        return None
    if not isinstance(raw, list):
        raise UnreadableBody("`tools` is not a list")
    limits.bounded(raw, limits.TOOLS, "tools")
    return [{"type": "function", "function": function} for tool in raw for function in _functions(tool)]


def _functions(tool: Any) -> list[Json]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind == "function":
        return [_function(tool)]
    if kind == "custom":
        description = tool.get("description")
        return [{"name": _text(tool, "name"), "description": description, "parameters": _CUSTOM_INPUT}]
    if kind == "namespace":
        inner = tool.get("tools")
        if not isinstance(inner, list):
            raise UnreadableBody("a namespace has no list of tools")
        name = _text(tool, "name")
        if len(name or "") > _MAX_NAMESPACE:
            raise UnreadableBody("the name of a namespace is too long")
        functions = (_function(each) for each in inner if isinstance(each, dict) and each.get("type") == "function")
        return [{**function, "name": f"{name}__{function['name']}"} for function in functions]
    if not isinstance(kind, str):
        raise UnreadableBody("an entry of `tools` has no type")
    return []


def _function(tool: Json) -> Json:
    """Without the type, which in this API stands beside the function's own fields."""
    return {"name": _text(tool, "name")} | {name: value for name, value in tool.items() if name != "type"}


def _text(item: Json, name: str) -> str | None:
    value = item.get(name)
    if value is not None and not isinstance(value, str):
        raise UnreadableBody(f"`{name}` is not a string")
    return value
