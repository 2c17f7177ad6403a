"""More of anything than an engine would serve is not read; the reason says so."""

from __future__ import annotations

import json

import pytest

from extproc.base.errors import BodyTooCostly
from extproc.base.model import Reason
from extproc.prompts.renderer import PlainRenderer
from extproc.requests import apis, limits
from extproc.routing.pools.pool import Pool
from extproc.routing.query import Ask, read

USER = {"role": "user", "content": "a"}
TOOL = {"type": "function", "function": {"name": "f"}}
IMAGE = {"type": "image_url", "image_url": {"url": "a"}}
CALL = {"type": "function_call", "name": "f", "arguments": "{}"}
BLOCK = {"type": "text", "text": "a"}
ANTHROPIC = {"name": "f", "input_schema": {}}

TOO_MANY: dict[str, tuple[str, dict[str, object]]] = {
    "messages": ("/v1/chat/completions", {"messages": [USER] * (limits.MESSAGES + 1)}),
    "tools": ("/v1/chat/completions", {"messages": [USER], "tools": [TOOL] * (limits.TOOLS + 1)}),
    "parts": ("/v1/chat/completions", {"messages": [{**USER, "content": ["a"] * (limits.PARTS + 1)}]}),
    "media": ("/v1/chat/completions", {"messages": [{**USER, "content": [IMAGE] * 8}] * (limits.MEDIA // 8 + 1)}),
    "calls": (
        "/v1/chat/completions",
        {"messages": [USER, {"role": "assistant", "tool_calls": [TOOL] * (limits.PARTS + 1)}]},
    ),
    "prompts": ("/v1/completions", {"prompt": ["a"] * (limits.PROMPTS + 1)}),
    "token ids": ("/v1/completions", {"prompt": [1] * (limits.TOKEN_IDS + 1)}),
    "items": ("/v1/responses", {"input": [CALL] * (limits.MESSAGES + 1)}),
    "tools of a response": ("/v1/responses", {"input": "a", "tools": [{"type": "web"}] * (limits.TOOLS + 1)}),
    "messages of Anthropic's": ("/v1/messages", {"messages": [USER] * (limits.MESSAGES + 1)}),
    "blocks": ("/v1/messages", {"messages": [{**USER, "content": [BLOCK] * (limits.PARTS + 1)}]}),
    "tools of Anthropic's": ("/v1/messages", {"messages": [USER], "tools": [ANTHROPIC] * (limits.TOOLS + 1)}),
}


@pytest.mark.parametrize(("path", "fields"), TOO_MANY.values(), ids=TOO_MANY.keys())
def test_too_many_of_anything(path: str, fields: dict[str, object]) -> None:
    """Load alone decides, and the log and the metrics say why."""
    body = json.dumps(fields).encode()
    with pytest.raises(BodyTooCostly):
        apis.parse(path, body)
    assert read(Pool("pool", PlainRenderer()), {}, Ask(path, body)).degraded is Reason.BODY_TOO_COSTLY
