"""Whatever a client sends is answered or refused; nothing else happens. Replies depend on the prompt alone."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.engine.apis import APIS, CHAT
from loadgen.engine.chat_api import ChatApi, Served, parse
from loadgen.engine.errors import Refused
from loadgen.engine.options import MODEL_DIR
from loadgen.engine.tokenizer import Tokens

API = ChatApi(MODEL_DIR, Served(("tiny",), ("adapter",), max_model_len=2_000, block_size=16))

scalars = st.one_of(st.none(), st.booleans(), st.integers(-5, 3_000), st.floats(), st.text(max_size=8))
junk = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)


def record(always: dict[str, st.SearchStrategy[Any]], /, **perhaps: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(always, optional=perhaps)


names = st.sampled_from("ab")
schemas = record(
    {"type": st.sampled_from(["object", "string", "integer", "number", "boolean", "array"])},
    properties=st.dictionaries(names, record({"type": st.sampled_from(["string", "object"])})),
    required=st.lists(names),
    enum=st.lists(scalars, max_size=2),
)
tools = record(
    {"type": st.just("function"), "function": record({"name": names}, parameters=schemas, strict=st.booleans())}
)
calls = record({"id": st.just("c"), "function": record({"name": names}, arguments=st.text(max_size=5))})
texts = st.text(max_size=12)
parts = record({"type": st.just("text"), "text": texts})
messages = st.one_of(
    record({"role": st.sampled_from(["system", "user", "developer", "critic"]), "content": texts}),
    record({"role": st.just("user"), "content": st.lists(parts, max_size=2)}),
    record({"role": st.just("assistant")}, content=texts, tool_calls=st.lists(calls, max_size=2)),
    record({"role": st.just("tool"), "tool_call_id": st.just("c"), "content": texts}),
)
bodies = record(
    {"messages": st.lists(messages, min_size=1, max_size=3)},
    tools=st.lists(tools, min_size=1, max_size=2),
    tool_choice=st.sampled_from(["none", "auto", "required", {"type": "function", "function": {"name": "a"}}]),
    model=st.sampled_from(["tiny", "adapter"]),
    max_tokens=st.integers(1, 50),
    ignore_eos=st.booleans(),
    n=st.integers(1, 3),
    stream=st.booleans(),
    stream_options=record({"include_usage": st.booleans()}),
    cache_salt=st.just("salt"),
    add_generation_prompt=st.booleans(),
    chat_template_kwargs=st.dictionaries(st.text(max_size=5), junk, max_size=2),
)


@st.composite
def spoilt(draw: st.DrawFn) -> dict[str, Any]:
    """A good body with anything in the place of up to two of its values, at any depth."""
    body: dict[str, Any] = copy.deepcopy(draw(bodies))
    for _ in range(draw(st.integers(0, 2))):
        place: Any = body
        while True:
            key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
            if not isinstance(place[key], dict | list) or not place[key] or draw(st.booleans()):
                break
            place = place[key]
        place[key] = draw(junk)
        if not body:
            break
    return body


T = TypeVar("T")


def outcome(call: Callable[[], T]) -> T | Refused:
    """What a call returns, or how it refuses; any other exception is a bug."""
    try:
        return call()
    except Refused as refusal:
        return refusal


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spoilt())
def test_any_body_is_answered_or_refused(body: dict[str, Any]) -> None:
    """Bodies with anything anywhere: either a completion that keeps its own rules, or an error of the client's."""
    completion = outcome(lambda: API.start(body, id="x", created=0))
    if isinstance(completion, Refused):
        assert 400 <= completion.status < 500
        assert json.loads(completion.body())["error"]["message"]
        return
    request = completion.request
    assert len(request.tokens) == request.prompt + request.reply <= 2_000
    assert len(request.keys) == len(request.extras) == (request.prompt + request.reply - 1) // 16
    assert len(completion.reply.pieces) == request.reply
    for api in APIS.values():
        stream = api.stream(completion, body)
        assert json.dumps([*stream.opening(), *stream.advance(completion.sample, 0, request.reply), *stream.closing()])
        assert json.dumps(api.answer(completion, body))


@given(st.one_of(st.binary(max_size=40), junk.map(lambda value: json.dumps(value).encode())))
def test_any_bytes_are_an_object_or_refused(raw: bytes) -> None:
    """Whatever bytes come: a JSON object, or 400."""
    found = outcome(lambda: parse(raw))
    assert found.status == 400 if isinstance(found, Refused) else isinstance(found, dict)


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


def test_replies_depend_on_the_prompt_alone() -> None:
    """The same prompt gets the same reply, from any process; another prompt or another adapter gets another one."""
    reply = API.start(chat("a", max_tokens=40), id="x", created=0).reply
    other = ChatApi(MODEL_DIR, API.served)
    assert other.start(chat("a", max_tokens=40, temperature=1.5, seed=3), id="y", created=9).reply == reply
    assert other.start(chat("b", max_tokens=40), id="x", created=0).reply != reply
    assert other.start(chat("a", max_tokens=40, model="adapter"), id="x", created=0).reply != reply


def test_replies_end_on_their_own_or_are_cut() -> None:
    """A reply that ends by itself ends with the end-of-turn token and says stop; one that is cut says length."""
    replies = [API.start(chat(str(number), max_tokens=60), id="x", created=0).reply for number in range(40)]
    assert {reply.finish for reply in replies} == {"stop", "length"}
    for reply in replies:
        assert (reply.finish == "stop") == (reply.pieces[-1] == "")
        assert (reply.finish == "length") == (len(reply.tokens) == 60)


@pytest.mark.parametrize(
    ("choice", "finishes"),
    [
        ("none", {"stop"}),
        ("required", {"tool_calls"}),
        ("auto", {"stop", "tool_calls"}),
        (None, {"stop", "tool_calls"}),
    ],
)
def test_tools_are_called_as_the_client_chose(choice: str | None, finishes: set[str]) -> None:
    """tool_choice none never calls, required always does, auto (the default) does both; arguments fit the schema."""
    schema = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "mode": {"enum": ["r", "w"]}, "skip": {"type": "string"}},
        "required": ["path", "mode"],
    }
    options = {"tools": [{"type": "function", "function": {"name": "open", "parameters": schema}}]}
    if choice:
        options |= {"tool_choice": choice}
    replies = [API.start(chat(str(number), **options), id="x", created=0).reply for number in range(30)]
    assert {reply.finish for reply in replies} == finishes
    assert {reply.tokens[-1] for reply in replies} == {Tokens(MODEL_DIR).eos}
    for call in (reply.call for reply in replies if reply.call):
        arguments = json.loads(call.arguments)
        assert call.name == "open"
        assert arguments.keys() == {"path", "mode"}
        assert arguments["mode"] in ("r", "w")


def test_a_call_that_is_cut_off_is_text() -> None:
    """A tool call that does not fit into max_tokens comes out as the text that it is, and says length."""
    body = chat("x", tools=[{"type": "function", "function": {"name": "open"}}], tool_choice="required", max_tokens=5)
    completion = API.start(body, id="x", created=0)
    choice = APIS[CHAT].answer(completion, body)["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith("<tool_call>")
    assert "tool_calls" not in choice["message"]
