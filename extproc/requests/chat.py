"""Messages and tools of a chat, normalised as vLLM 0.32 normalises them before it applies the chat template.

Owns the shapes that clients send and the order of keys that templates dump; refuses to know templates: whether parts
of a content are joined to one string, and whether `developer` becomes `system`, is left to the renderer.

A normalised message has `role`, `content` and whatever else vLLM hands on to a template. Its content is the string
that was sent, or a list of parts: dicts whose `type` is `text`, `image`, `audio`, `video` or `tool_reference`; media
carry a digest with them (`media.py`).
Every function raises `UnreadableBody` for what is no such thing, `BodyTooCostly` for too many of them (`limits.py`),
and nothing else but RecursionError.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from extproc.base.errors import UnreadableBody
from extproc.requests import limits
from extproc.requests.beginnings import Known
from extproc.requests.media import Medium, digest

Json = dict[str, Any]

MEDIA = frozenset({"image", "audio", "video"})  # parts that become tokens which are no text

# Which field of a text part holds its text.
_TEXT_FIELDS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
# A media part without a type is told by the first of these fields that it has.
_MEDIA_FIELDS = {
    "image_url": "image",
    "image_pil": "image",
    "image_embeds": "image",
    "audio_embeds": "audio",
    "video_embeds": "video",
    "audio_url": "audio",
    "input_audio": "audio",
    "video_url": "video",
}
_MEDIA_TYPES = {"input_image": "image", **_MEDIA_FIELDS}
# Fields that vLLM's types of parts name; a template is shown only the others, such as `cache_control`.
_PART_FIELDS = frozenset(_MEDIA_FIELDS) | {
    "closed",
    "data",
    "file",
    "name",
    "prompt_cache_breakpoint",
    "refusal",
    "text",
    "thinking",
    "type",
    "uuid",
}
# The line changes with every request of Claude Code, so vLLM cuts it off: it would spoil every cache hit.
BILLING_HEADER = "x-anthropic-billing-header"


def messages(raw: Any) -> list[Json]:
    """The `messages` of a request: at least one."""
    if not isinstance(raw, list) or not raw:
        raise UnreadableBody("`messages` is not a list of at least one message")
    limits.bounded(raw, limits.MESSAGES, "messages")
    known = raw.read if isinstance(raw, Known) else ()
    read = [*known, *(_message(message) for message in raw[len(known) :])]
    if isinstance(raw, Known):
        raw.keep(read)
    media = [part for message in read if not isinstance(message["content"], str) for part in message["content"]]
    limits.bounded([part for part in media if isinstance(part, Medium)], limits.MEDIA, "media")
    return read


def tools(raw: Any) -> list[Json] | None:
    """The `tools` of a request; None for none (vLLM refuses an empty list since 0.32, and took it for none before)."""
    if raw is not None and not isinstance(raw, list):
        raise UnreadableBody("`tools` is not a list")
    return [_tool(tool) for tool in limits.bounded(raw, limits.TOOLS, "tools")] if raw else None


def _message(raw: Any) -> Json:
    role = raw.get("role") if isinstance(raw, dict) else None
    if not isinstance(role, str):
        raise UnreadableBody("a message is not an object with a role")
    content = raw.get("content")
    if role == "system":
        content = _without_billing_header(content)
    if not isinstance(content, str):
        content = _parts(content)
    message: Json = {"role": role, "content": content}
    if role == "assistant":
        _add_calls_and_reasoning(message, raw)
    elif role == "tool" and "tool_call_id" in raw:
        message["tool_call_id"] = raw["tool_call_id"]
    for name in ("name", "task"):
        if isinstance(raw.get(name), str):
            message[name] = raw[name]
    if role == "developer":
        message["tools"] = _developer_tools(raw.get("tools"))
    return message


def _add_calls_and_reasoning(message: Json, raw: Json) -> None:
    calls = raw.get("tool_calls")
    if calls:
        if not isinstance(calls, list):
            raise UnreadableBody("`tool_calls` is not a list")
        message["tool_calls"] = [_tool_call(call) for call in limits.bounded(calls, limits.PARTS, "calls")]
    reasoning = raw.get("reasoning")
    if reasoning is None:
        reasoning = raw.get("reasoning_content")
    if reasoning is not None:
        message["reasoning"] = message["reasoning_content"] = reasoning


def _parts(raw: Any) -> list[Json]:
    if raw is None:
        return []
    if not isinstance(raw, list):
        raise UnreadableBody("`content` is neither text nor a list of parts")
    parts = (_part(part) for part in limits.bounded(raw, limits.PARTS, "parts"))
    return [part for part in parts if part is not None]


def _part(raw: Any) -> Json | None:
    """A part as templates see it; None for one without content, which vLLM skips."""
    if isinstance(raw, str):
        return {"type": "text", "text": raw}
    if not isinstance(raw, dict):
        raise UnreadableBody("a part of `content` is not an object")
    kind = raw.get("type")
    if kind is None:
        kind = next((name for name in _MEDIA_FIELDS if name in raw), None)
    if kind == "tool_reference":
        return {"type": kind, "name": raw.get("name")}
    if not isinstance(kind, str) or (kind not in _TEXT_FIELDS and kind not in _MEDIA_TYPES):
        raise UnreadableBody("a part of `content` is of no known type")
    part: Json = {"type": "text"}
    if kind in _MEDIA_TYPES:
        value = next((raw[name] for name in _MEDIA_FIELDS if raw.get(name) is not None), None)
        part = Medium(_MEDIA_TYPES[kind], digest(raw.get("uuid"), value))
    else:
        text = raw.get(_TEXT_FIELDS[kind])
        if text is None:
            return None
        if not isinstance(text, str):
            raise UnreadableBody("the text of a part is not a string")
        part["text"] = text
    for name, value in raw.items():
        if name not in _PART_FIELDS:
            part[name] = value
    return part


def _without_billing_header(raw: Any) -> Any:
    if isinstance(raw, str):
        return (raw.partition("\n")[2] or []) if raw.startswith(BILLING_HEADER) else raw
    if not isinstance(raw, list):
        return raw
    kept = []
    for part in raw:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if isinstance(text, str) and text.startswith(BILLING_HEADER):
            rest = text.partition("\n")[2]
            if not rest:
                continue
            part = part | {"text": rest}
        kept.append(part)
    return kept


def _tool_call(raw: Any) -> Json:
    """A call with its arguments as an object."""
    function = _function(raw, "tool_calls")
    function = _ordered({"arguments": None} | function, "arguments", "name")
    function["arguments"] = _arguments(function["arguments"])
    return _ordered(raw | {"function": function}, "id", "function", "type")


def _developer_tools(raw: Any) -> list[Json] | None:
    """Tools of a developer message; unlike those of the request they are handed on with all their keys."""
    if raw is None:
        return None
    if not isinstance(raw, list):
        raise UnreadableBody("`tools` of a message is not a list")
    order = ("name", "description", "parameters", "strict")
    return [
        _ordered(tool | {"function": _ordered(_function(tool, "tools"), *order)}, "function", "type")
        for tool in limits.bounded(raw, limits.TOOLS, "tools")
    ]


def _function(raw: Any, field: str) -> Json:
    function = raw.get("function") if isinstance(raw, dict) else None
    if not isinstance(function, dict) or raw.get("type", "function") != "function":
        raise UnreadableBody(f"an entry of `{field}` is not a function")
    return function


def _ordered(raw: Json, *first: str) -> Json:
    """The same with these keys first: pydantic puts them in the order of the `openai` package's types, others last."""
    ordered: Json = {name: raw[name] for name in first if name in raw}
    return ordered | raw


def _arguments(raw: Any) -> Json:
    """Whatever is no object becomes `{}`, as in vLLM, so that a model's bad call does not spoil its session."""
    if isinstance(raw, str):
        try:
            raw = msgspec.json.decode(raw)
        except msgspec.DecodeError:
            raw = _python_json(raw)
    return raw if isinstance(raw, dict) else {}


def _python_json(text: str) -> Any:
    """Python's parser takes what msgspec refuses (NaN, 1e400, lone surrogates), and it is the one that vLLM uses."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _tool(raw: Any) -> Json:
    """A tool as vLLM dumps it: its own order of keys, missing ones null, unknown ones dropped."""
    function = _function(raw, "tools")
    dumped: Json = {name: function.get(name) for name in ("name", "description", "parameters")}
    tool: Json = {"type": "function", "function": dumped}
    if function.get("strict") is not None:
        dumped["strict"] = function["strict"]
    deferred = raw.get("defer_loading")
    if deferred is not None:
        tool["defer_loading"] = deferred
    if function.get("defer_loading") is not None:
        deferred = function["defer_loading"]
    if deferred is not None:
        dumped["defer_loading"] = deferred
    return tool
