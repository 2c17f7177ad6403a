"""apis.py and chat.py: what a client may send, and what of it reaches the renderer."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from extproc.base.errors import RenderError, UnreadableBody, UnsupportedApi
from extproc.base.model import Request
from extproc.prompts.renderer import PlainRenderer, Renderer
from extproc.requests import apis
from tests.support.paths import MODEL

CHAT = "/v1/chat/completions"

# A machine that is busy with other tests must not fail one of these.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def read(**body: Any) -> Request:
    return apis.parse(CHAT, json.dumps({"messages": [{"role": "user", "content": "go"}], **body}).encode())


def message(**raw: Any) -> Any:
    """One message as the renderer gets it."""
    return read(messages=[raw]).messages[0]


def call(arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}, **more}


def test_an_agents_request_is_read_whole() -> None:
    """Every field that decides where a request goes is taken from its body."""
    request = read(
        model="adapter-1",
        messages=[
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "assistant", "tool_calls": [call()]},
            {"role": "tool", "content": "c", "tool_call_id": "c1"},
        ],
        tools=[{"type": "function", "function": {"name": "f"}}],
        cache_salt="tenant",
        stream=True,
        add_generation_prompt=False,
        continue_final_message=True,
        add_special_tokens=True,
    )
    assert (request.model, request.turn, request.cache_salt, request.stream) == ("adapter-1", 2, "tenant", True)
    assert (request.add_generation_prompt, request.continue_final_message) == (False, True)
    assert request.add_special_tokens
    assert request.tools == [{"type": "function", "function": {"name": "f", "description": None, "parameters": None}}]


def test_what_is_left_out_has_the_engines_defaults() -> None:
    """A request of nothing but messages is a first turn that asks for a generation prompt."""
    body = b'{"messages": [{"role": "user", "content": "go"}]}'
    assert apis.parse(CHAT, body) == Request(None, turn=0, messages=[{"role": "user", "content": "go"}], size=len(body))
    defaults = read(model="", tools=[], cache_salt=None, stream=None, chat_template_kwargs=None)
    assert replace(defaults, size=0) == replace(read(), size=0)


@pytest.mark.parametrize("path", ["/tokenize", "/v1/embeddings", "/", "", "?" + CHAT])
def test_a_path_that_we_cannot_render_is_an_unsupported_api(path: str) -> None:
    """What is no API of ours is routed by load."""
    with pytest.raises(UnsupportedApi):
        apis.parse(path, b"{}")


def test_a_body_is_read_as_its_path_says_wherever_a_gateway_puts_it() -> None:
    """The path is told by `paths.py`, whose tests have its variants."""
    body = b'{"messages": [{"role": "user", "content": "go"}], "max_tokens": 1}'
    for path, plain in (("/team-a/v1/chat/completions?x=/v1/completions", CHAT), ("/a/v1/messages/", "/v1/messages")):
        assert apis.parse(path, body) == apis.parse(plain, body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"messages"',
        b"{}",
        b"\x00",
        b'{"messages": [], "messages": 5}',
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "go"}]} trailing',
        b'{"messages": [{"role": "user", "content": NaN}]}',
        b"[" * 10_000,
        b'{"messages": ' + b'[{"a":' * 10_000,
        b'{"messages": [{"role": "user", "content": "go"}], "tools": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'{"messages": [{"role": "user", "content": "go"}], "n": ' + b"1" * 100_000 + b"}",
        b"\x1f\x8b\x08" + bytes(100),
        b"a" * 8_000_000,
    ],
    ids=lambda body: repr(body[:30]),
)
def test_bytes_that_are_no_request_are_unreadable(body: bytes) -> None:
    """Malformed, cut, compressed, binary or absurdly nested bodies are left for the engine to judge."""
    with pytest.raises(UnreadableBody):
        apis.parse(CHAT, body)


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": []},
        {"messages": {}},
        {"messages": None},
        {"messages": ["go"]},
        {"messages": [{}]},
        {"messages": [{"role": 5}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": {"type": "text"}}]},
        {"messages": [{"role": "user", "content": [5]}]},
        {"messages": [{"role": "user", "content": [{}]}]},
        {"messages": [{"role": "user", "content": [{"type": ["text"]}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
        {"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]},
        {"messages": [{"role": "assistant", "tool_calls": 5}]},
        {"messages": [{"role": "assistant", "tool_calls": [5]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]}]},
        {"messages": [{"role": "developer", "tools": 5}]},
        {"messages": [{"role": "developer", "tools": [5]}]},
        {"tools": 5},
        {"tools": [5]},
        {"tools": [{"type": "function"}]},
        {"tools": [{"type": "web_search"}]},
        {"model": 5},
        {"stream": "yes"},
        {"cache_salt": ["a"]},
        {"add_generation_prompt": 1},
        {"chat_template_kwargs": []},
        {"chat_template_kwargs": {"tools": 5}},
    ],
    ids=json.dumps,
)
def test_wrong_types_are_unreadable(wrong: dict[str, Any]) -> None:
    """A field of the wrong type is refused by name instead of failing later."""
    with pytest.raises(UnreadableBody):
        read(**wrong)


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        ('{"b": 1, "a": 2}', {"b": 1, "a": 2}),
        ('{"b": 1, "b": 2}', {"b": 2}),
        ('{"n": 12345678901234567890123}', {"n": 12345678901234567890123}),
        ('{"n": 1e5, "m": -0}', {"n": 100000.0, "m": 0}),
        ('{"n": 1e400}', {"n": float("inf")}),
        (' {"b": "x"} ', {"b": "x"}),
        ({"already": "object"}, {"already": "object"}),
        ("", {}),
        ("{bad", {}),
        ("[1]", {}),
        ('"s"', {}),
        ("null", {}),
        (None, {}),
        (5, {}),
        ('{"n": ' + "1" * 5000 + "}", {}),
    ],
)
def test_arguments_of_a_call_are_an_object(arguments: Any, seen: Any) -> None:
    """Templates get what vLLM gives them: the parsed object, and an empty one for whatever is none."""
    parsed = message(role="assistant", tool_calls=[call(arguments)])["tool_calls"][0]["function"]["arguments"]
    assert json.dumps(parsed) == json.dumps(seen)


def test_a_call_has_its_keys_in_the_engines_order() -> None:
    """Templates that dump a call see id, function (arguments, name) and type first, then whatever else was sent."""
    sent = {"zz": 1, "type": "function", "function": {"x": 1, "name": "f", "arguments": "{}"}, "id": "c1"}
    seen = message(role="assistant", tool_calls=[sent])["tool_calls"][0]
    assert json.dumps(seen) == (
        '{"id": "c1", "function": {"arguments": {}, "name": "f", "x": 1}, "type": "function", "zz": 1}'
    )


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        ({"description": "d", "name": "f"}, {"name": "f", "description": "d", "parameters": None}),
        ({"name": "f", "strict": None, "returns": {}}, {"name": "f", "description": None, "parameters": None}),
        ({"strict": False, "name": "f"}, {"name": "f", "description": None, "parameters": None, "strict": False}),
    ],
)
def test_tools_are_dumped_as_the_engine_dumps_them(sent: dict[str, Any], seen: dict[str, Any]) -> None:
    """Own order of keys, missing ones null, unknown ones gone, whatever the client's JSON looked like."""
    request = read(tools=[{"cache_control": 1, "function": sent, "type": "function"}])
    assert json.dumps(request.tools) == json.dumps([{"type": "function", "function": seen}])


def test_deferred_tools_say_so_in_both_places() -> None:
    """vLLM hands `defer_loading` of a tool on to its function."""
    [tool] = read(tools=[{"function": {"name": "f"}, "defer_loading": True}]).tools or ()
    assert tool["defer_loading"] is True
    assert tool["function"]["defer_loading"] is True


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        ({"role": "user"}, {"content": []}),
        ({"role": "user", "content": None}, {"content": []}),
        ({"role": "user", "content": ""}, {"content": ""}),
        ({"role": "user", "content": ["a"]}, {"content": [{"type": "text", "text": "a"}]}),
        ({"role": "user", "content": [{"type": "text", "text": None}]}, {"content": []}),
        (
            {"role": "user", "content": [{"type": "text", "text": "a", "name": "n", "cache_control": 1}]},
            {"content": [{"type": "text", "text": "a", "cache_control": 1}]},
        ),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"content": [{"type": "text", "text": "no"}]},
        ),
        ({"role": "user", "content": [{"image_url": "http://x"}]}, {"content": [{"type": "image"}]}),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}, {"content": [{"type": "audio"}]}),
        (
            {"role": "tool", "content": [{"type": "tool_reference", "name": "f"}]},
            {"content": [{"type": "tool_reference", "name": "f"}]},
        ),
        ({"role": "user", "content": "a", "name": "bob", "x": 1}, {"content": "a", "name": "bob"}),
        ({"role": "user", "content": "a", "name": 5}, {"content": "a"}),
        ({"role": "tool", "content": "a", "tool_call_id": "c"}, {"content": "a", "tool_call_id": "c"}),
        ({"role": "weird", "content": "a", "tool_calls": [1], "reasoning": "r"}, {"content": "a"}),
        ({"role": "assistant", "content": "a", "tool_calls": []}, {"content": "a"}),
        (
            {"role": "assistant", "content": "a", "reasoning_content": "r"},
            {"content": "a", "reasoning": "r", "reasoning_content": "r"},
        ),
        (
            {"role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "q"},
            {"content": "a", "reasoning": "r", "reasoning_content": "r"},
        ),
        ({"role": "developer", "content": "a"}, {"content": "a", "tools": None}),
        ({"role": "system", "content": "x-anthropic-billing-header: 1\nrest"}, {"content": "rest"}),
        ({"role": "system", "content": "x-anthropic-billing-header: 1"}, {"content": []}),
        (
            {
                "role": "system",
                "content": [
                    {"type": "text", "text": "x-anthropic-billing-header: 1"},
                    {"type": "text", "text": "x-anthropic-billing-header: 1\nb"},
                    {"type": "text", "text": "c"},
                ],
            },
            {"content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
        ),
        ({"role": "user", "content": "x-anthropic-billing-header: 1"}, {"content": "x-anthropic-billing-header: 1"}),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_messages_are_normalised_as_the_engine_normalises_them(raw: dict[str, Any], seen: dict[str, Any]) -> None:
    """What vLLM 0.32 drops, renames and fills in is dropped, renamed and filled in."""
    assert message(**raw) == {"role": raw["role"], **seen}


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        ({"chat_template_kwargs": {"a": 1, "b": None, "c": "auto", "d": False}}, {"a": 1, "d": False}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low", "enable_thinking": True}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            {"reasoning_effort": "none", "enable_thinking": True},
        ),
        ({"documents": [{"title": "t"}]}, {"documents": [{"title": "t"}]}),
    ],
)
def test_the_template_is_told_what_the_engine_tells_it(body: dict[str, Any], seen: dict[str, Any]) -> None:
    """chat_template_kwargs and the fields that vLLM passes on; null and "auto" mean "not given"."""
    assert read(**body).template_kwargs == seen


def test_tools_in_template_kwargs_win() -> None:
    """vLLM lets chat_template_kwargs replace the request's tools, unless they are null."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert read(tools=tools, chat_template_kwargs={"tools": [1]}).tools == [1]
    assert read(tools=tools, chat_template_kwargs={"tools": None}).tools == read(tools=tools).tools


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)
FIELDS = ["model", "stream", "tools", "documents", "chat_template_kwargs", "reasoning_effort", "cache_salt"]
PARTS = ["content", "tool_calls", "tool_call_id", "reasoning", "name", "function", "arguments", "id", "parameters"]
PARTS += ["type", "text", "image_url", "refusal", "thinking", "strict", "tools"]
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool", "weird"])
WORDS = st.sampled_from(["text", "image_url", "function", "refusal", "auto", "none", '{"a": 1}', "{bad"]) | ROLES
# JSON that is nearly a request: the names that we read, over values that are now and then of the right type.
NEARLY = st.recursive(
    JSON | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(PARTS), inner, max_size=6),
    max_leaves=6,
)
MESSAGE = st.fixed_dictionaries({"role": ROLES}, optional=dict.fromkeys(PARTS, NEARLY | st.text()))
REQUEST = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGE, min_size=1, max_size=3)}, optional=dict.fromkeys(FIELDS, NEARLY)
)
RENDERERS = (Renderer.load(MODEL), PlainRenderer())


def judge(body: bytes) -> None:
    try:
        request = apis.parse(CHAT, body)
    except UnreadableBody:
        return
    for renderer in RENDERERS:
        try:
            prompt = renderer.render(request)
        except RenderError:
            continue
        assert 0 <= prompt.history <= len(prompt.data)
        assert 0 <= prompt.matchable <= len(prompt.data)


@UNHURRIED
@given(st.binary(max_size=200) | st.text().map(str.encode))
def test_any_bytes_are_read_or_unreadable(body: bytes) -> None:
    """No bytes whatsoever raise anything but UnreadableBody."""
    judge(body)


@UNHURRIED
@given(JSON | NEARLY)
def test_any_json_is_read_or_unreadable(body: Any) -> None:
    """No JSON document raises anything else either, and what is read can be rendered or refused."""
    judge(json.dumps(body).encode())


@UNHURRIED
@given(REQUEST)
def test_mutated_requests_are_read_or_unreadable(body: Any) -> None:
    """Requests with anything in any field are rendered or refused, and lengths stay within the prompt."""
    judge(json.dumps(body).encode())


@UNHURRIED
@given(st.data())
def test_a_damaged_request_is_read_or_unreadable(data: st.DataObject) -> None:
    """A real body with bytes changed, dropped or doubled anywhere harms nobody."""
    body = bytearray(
        b'{"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "a\\u00e9"}]}, {"role": '
        b'"assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}, '
        b'{"role": "tool", "content": "r"}], "tools": [{"type": "function", "function": {"name": "f"}}]}'
    )
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body) - 1))
        body[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    judge(bytes(body))
