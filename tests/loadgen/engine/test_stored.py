"""Responses that are gone on from: the conversation so far, calls included, and nothing that belongs to one request."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.engine import stored
from loadgen.engine.apis import RESPONSES, read
from loadgen.engine.chat_api import ChatApi, Served
from loadgen.engine.errors import Refused
from loadgen.engine.options import MODEL_DIR

API = ChatApi(MODEL_DIR, Served(["tiny"], [], 4_000, 16))
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


def kept(responses: stored.StoredResponses, name: str, **body: Any) -> dict[str, Any]:
    """Serve a response and store it; the chat that it was."""
    chat = responses.continued(body, read(RESPONSES, body))
    responses.keep(API.start(chat, id=name, created=0), chat, {"id": name})
    return chat


def test_a_conversation_goes_on_behind_what_was_stored() -> None:
    """Questions and replies of all responses before, a call with its arguments; instructions are each request's own."""
    responses = stored.StoredResponses()
    kept(responses, "a", input="first", instructions="Be brief.", tools=[TOOL], tool_choice="required")
    result = {"type": "function_call_output", "call_id": "c", "output": "done"}
    kept(responses, "b", input=[result], previous_response_id="a")
    chat = kept(responses, "c", input="third", instructions="Be long.", previous_response_id="b")
    roles = [message["role"] for message in chat["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert chat["messages"][0]["content"] == "Be long."
    (call,) = chat["messages"][2]["tool_calls"]
    assert call["function"]["name"] == "look"
    assert chat["messages"][4]["content"]
    assert responses.find("b") == {"id": "b"}


def test_what_is_not_stored_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """404, for an id that never was and for the oldest of too many."""
    monkeypatch.setattr(stored, "MOST", 2)
    responses = stored.StoredResponses()
    for name in "abc":
        kept(responses, name, input="hello")
    for name in ("a", "nobody"):
        with pytest.raises(Refused) as refused:
            responses.find(name)
        assert refused.value.status == 404
        with pytest.raises(Refused):
            responses.continued({"previous_response_id": name}, {"messages": []})
    assert responses.find("b") == {"id": "b"}
