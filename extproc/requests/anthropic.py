"""Anthropic's Messages API: its body -> the chat request that vLLM 0.32 makes of it before it renders.

Owns Anthropic's blocks and what becomes of each. Refuses to know templates: where vLLM asks the template what to do
(`Request.anthropic`), the renderer does. Raises `UnreadableBody` for what is no such request,
`BodyTooCostly` for too much of it, and nothing else.
"""

from __future__ import annotations

from typing import Any

from extproc.base.errors import UnreadableBody
from extproc.requests import limits
from extproc.requests.chat import BILLING_HEADER, Json

_ROLES = frozenset({"user", "assistant", "system"})
_CHANGES = frozenset({"tool_addition", "tool_removal"})
# These are left out: they are opaque, or are read elsewhere.
_SILENT = frozenset({"redacted_thinking", "tool_reference"})


def chat(body: Json) -> Json:
    """The body of the chat completion that renders to the same prompt."""
    raw = body.get("messages")
    if not isinstance(raw, list) or not raw:
        raise UnreadableBody("`messages` is not a list of at least one message")
    messages = _system(body.get("system"))
    for message in limits.bounded(raw, limits.MESSAGES, "messages"):
        messages += _messages(message)
    converted: Json = {
        "messages": messages,
        "tools": _tools(body.get("tools"), raw),
        "reasoning_effort": _effort(body),
    }
    for name in ("model", "cache_salt", "stream", "chat_template_kwargs"):
        converted[name] = body.get(name)
    return converted


def _system(raw: Any) -> list[Json]:
    text = raw if isinstance(raw, str) else _text_of_system(raw)
    return [{"role": "system", "content": text}] if text else []


def _text_of_system(raw: Any) -> str:
    if raw is None:
        return ""
    texts = (_text(block, "text") for block in _blocks(raw) if block["type"] == "text")
    return "".join(text for text in texts if text and not text.startswith(BILLING_HEADER))


def _messages(raw: Any) -> list[Json]:
    """One message of Anthropic's is none, one or several of OpenAI's: each result of a tool is one of its own."""
    role = raw.get("role") if isinstance(raw, dict) else None
    if not isinstance(role, str) or role not in _ROLES:
        raise UnreadableBody("a message is not an object of role user, assistant or system")
    content = raw.get("content")
    if role == "system":
        text = content if isinstance(content, str) else _text_of_system(content)
        return [] if not text or text.startswith(BILLING_HEADER) else [{"role": role, "content": text}]
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    before: list[Json] = []
    parts: list[Json] = []
    message: Json = {"role": role}
    for block in _blocks(content):
        _read(block, message, parts, before)
    if "reasoning" in message:
        message["reasoning"] = "".join(message["reasoning"])
    if len(parts) == 1 and parts[0]["type"] == "text":
        message["content"] = parts[0]["text"]
    elif parts:
        message["content"] = parts
    return before if role == "user" and not parts else [*before, message]


def _read(block: Json, message: Json, parts: list[Json], before: list[Json]) -> None:
    """Add a block to its message, to the message's parts, or as a message before it."""
    kind = block["type"]
    if kind == "text":
        if text := _text(block, "text"):
            parts.append({"type": "text", "text": text})
    elif kind == "image":
        if block.get("source"):
            parts.append({"type": "image_url", "image_url": block["source"]})
    elif kind == "thinking":
        if (thinking := _text(block, "thinking")) is not None:
            message.setdefault("reasoning", []).append(thinking)
    elif kind == "tool_use":
        # vLLM makes up an id with the time in it where there is none; no template that we know writes such ids.
        function = {"name": _text(block, "name") or "", "arguments": _arguments(block.get("input"))}
        call = {"id": _text(block, "id") or "", "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call)
    elif kind == "tool_result":
        content = block.get("content")
        if message["role"] == "user":
            before += _results(_text(block, "tool_use_id") or "", content)
        else:
            parts.append({"type": "text", "text": f"Tool result: {content or ''}"})
    elif kind not in _SILENT:
        raise UnreadableBody("a block of `content` is of no known type")


def _results(call: str, content: Any) -> list[Json]:
    """The text of a tool's result; its images follow as a user's, tools that it names as a result of their own."""
    texts: list[str] = []
    images: list[Json] = []
    references: list[Json] = []
    if isinstance(content, str):
        texts.append(content)
    elif content is not None:
        for item in _list(content, "content"):
            kind = item.get("type") if isinstance(item, dict) else None
            if kind == "text":
                texts.append(_text(item, "text") or "")
            elif kind == "image":
                images.append({"type": "image_url", "image_url": item.get("source")})
            elif kind == "tool_reference" and (name := item.get("tool_name") or item.get("name")):
                references.append({"type": "tool_reference", "name": name})
    results: list[Json] = [{"role": "tool", "tool_call_id": call, "content": "\n".join(texts)}]
    if images:
        results.append({"role": "user", "content": images})
    if references:
        results.append({"role": "tool", "tool_call_id": call, "content": references})
    return results


def _tools(raw: Any, messages: list[Any]) -> list[Json] | None:
    """The tools in effect at the end of the conversation, which system messages may add and remove."""
    given = None if raw is None else limits.bounded(_list(raw, "tools"), limits.TOOLS, "tools")
    tools = None if given is None else [_checked_tool(tool) for tool in given]
    changes = [
        block
        for message in messages
        if message["role"] == "system" and isinstance(message.get("content"), list)
        for block in _blocks(message["content"])
        if block["type"] in _CHANGES
    ]
    if changes:
        in_effect = {tool["name"]: tool for tool in tools or ()}
        removed: set[str] = set()
        for block in changes:
            _change(block, in_effect, removed)
        tools = [tool for name, tool in in_effect.items() if name not in removed]
    return None if tools is None else [_tool(tool) for tool in tools]


def _change(block: Json, tools: dict[str, Json], removed: set[str]) -> None:
    given = block.get("tool")
    change: Json = given if isinstance(given, dict) else {}
    adds = block["type"] == "tool_addition"
    kind = change.get("type")
    if kind == "tool_definition" and adds:
        tool = _checked_tool(change.get("definition"))
        name = tool["name"]
        tools[name] = tool
    elif kind == "tool_reference" and isinstance(change.get("name"), str) and change["name"] in tools:
        name = change["name"]
        if adds and tools[name].get("defer_loading") is not None:
            tools[name] = {**tools[name], "defer_loading": None}
    else:
        raise UnreadableBody(f"a {block['type']} names no tool")
    (removed.discard if adds else removed.add)(name)


def _checked_tool(raw: Any) -> Json:
    named = isinstance(raw, dict) and isinstance(raw.get("name"), str)
    if not named or not isinstance(raw.get("input_schema"), dict):
        raise UnreadableBody("an entry of `tools` has no name or no input_schema")
    tool: Json = raw
    return tool


def _tool(tool: Json) -> Json:
    schema = tool["input_schema"]
    function = {
        "name": tool["name"],
        "description": tool.get("description"),
        "parameters": schema if "type" in schema else {**schema, "type": "object"},
        "strict": tool.get("strict"),
        "defer_loading": tool.get("defer_loading"),
    }
    return {"type": "function", "function": function}


def _effort(body: Json) -> str | None:
    """How hard the model is to think. Where it is not to think at all the template may know no word for that."""
    thinking = body.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") == "disabled":
        return "none"
    config = body.get("output_config")
    return _text(config, "effort") if isinstance(config, dict) else None


def _arguments(raw: Any) -> Json:
    if raw is not None and not isinstance(raw, dict):
        raise UnreadableBody("the `input` of a tool_use is not an object")
    return raw or {}


def _blocks(raw: Any) -> list[Json]:
    blocks = limits.bounded(_list(raw, "content"), limits.PARTS, "blocks")
    for block in blocks:
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise UnreadableBody("a block of `content` is not an object with a type")
    return blocks


def _list(raw: Any, name: str) -> list[Any]:
    if not isinstance(raw, list):
        raise UnreadableBody(f"`{name}` is not a list")
    return raw


def _text(block: Json, name: str) -> str | None:
    value = block.get(name)
    if value is not None and not isinstance(value, str):
        raise UnreadableBody(f"`{name}` is not a string")
    return value
