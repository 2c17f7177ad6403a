"""What is read at once, and what takes long: agents' everyday requests are, and the worst of attacks is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extproc.base.errors import TakesLong
from extproc.prompts.renderer import PlainRenderer
from extproc.routing.pools.pool import Pool
from extproc.routing.query import Ask
from extproc.routing.reading import LARGE_BYTES, MOST_US, at_once
from tests.support.paths import ROOT

POOL = Pool("pool", PlainRenderer())
CHAT = "/v1/chat/completions"
CODE = (ROOT / "extproc/routing/router.py").read_text()[:4000]
USER = {"role": "user", "content": "go on"}


def agent(turns: int) -> dict[str, Any]:
    """A request as coding agents send it: tools, and code in every message."""
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string", "description": "what"} for i in range(5)}}
    function = {"name": "edit", "description": "edits", "parameters": schema}
    call = {"id": "1", "type": "function", "function": {"name": "edit", "arguments": json.dumps({"path": "a/b.py"})}}
    turn = [
        {"role": "assistant", "content": "I look at it.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": CODE},
    ]
    return {"messages": [USER, *(turn * turns), USER], "tools": [{"type": "function", "function": function}] * 20}


def reads(path: str, fields: object) -> None:
    body = fields if isinstance(fields, bytes) else json.dumps(fields, ensure_ascii=False).encode()
    at_once([POOL], lambda _: {}, Ask(path, body), MOST_US)


@pytest.mark.parametrize("turns", [0, 10, 80])
def test_an_agents_request_is_read_at_once(turns: int) -> None:
    """Up to some hundred kilobytes: no other process has to do with it."""
    reads(CHAT, agent(turns))


MANY = 65_536 // 30
COSTLY: dict[str, tuple[str, object]] = {
    "length": (CHAT, b" " * (LARGE_BYTES + 1)),
    "messages": (CHAT, {"messages": [USER] * MANY}),
    "results of tools": (CHAT, {"messages": [USER, {"role": "tool", "content": "b"}] * (MANY // 2)}),
    "images": (CHAT, {"messages": [{"role": "user", "content": [{"image_url": "a"}] * 500}]}),
    "parts": (CHAT, {"messages": [{"role": "user", "content": ["a"] * 5000}]}),
    "tools": (CHAT, agent(0) | {"tools": agent(0)["tools"] * 50}),
    "arguments": (
        CHAT,
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"function": {"name": "f", "arguments": json.dumps({str(i): i for i in range(5000)})}}
                    ],
                },
            ]
        },
    ),
    "options of the template": (CHAT, {"messages": [USER], "chat_template_kwargs": {str(i): i for i in range(5000)}}),
    "lists": (CHAT, b'{"x":[' + b"[]," * 20_000 + b'[]],"messages":[{"role":"user","content":"a"}]}'),
    "token ids": ("/v1/completions", {"prompt": [1] * 130_000}),
    "rare letters": (CHAT, {"messages": [{"role": "user", "content": "\U00020000" * 50_000}]}),
    "escapes": (CHAT, b'{"messages":[{"role":"user","content":"' + b"\\u00e9" * 35_000 + b'"}]}'),
    "items": ("/v1/responses", {"input": [USER] * MANY}),
    "blocks": ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * MANY}]}),
}


@pytest.mark.parametrize(("path", "fields"), COSTLY.values(), ids=COSTLY.keys())
def test_what_a_client_can_make_dear_is_not(path: str, fields: object) -> None:
    """All of these but the first are small bodies that would hold every other request up."""
    with pytest.raises(TakesLong):
        reads(path, fields)


def test_a_patient_caller_gets_all() -> None:
    """Commands and simulations wait for it."""
    read = at_once([POOL], lambda _: {}, Ask(CHAT, json.dumps({"messages": [USER] * MANY}).encode()))
    assert read.query.prompt > 0
