"""Beginnings of bodies: whatever is remembered, a body is read as if nothing were."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.base.errors import UnreadableBody
from extproc.requests import apis
from extproc.requests.beginnings import CHANGING, PIECE, Beginnings, Known
from extproc.requests.bodies import document

CHAT, MESSAGES, COMPLETIONS = "/v1/chat/completions", "/v1/messages", "/v1/completions"
MIB = 1 << 20


@cache
def message(number: int, size: int = 1500) -> dict[str, Any]:
    rng = random.Random(number)
    text = "".join(rng.choices('abc dé"\\\n数🙂', k=size))
    call = {"id": f"call_{number}", "type": "function", "function": {"name": "f", "arguments": '{"a": [1, {}]}'}}
    if number % 3 == 1:
        return {"role": "assistant", "content": text, "tool_calls": [call]}
    return {"role": "user", "content": [{"type": "text", "text": text}] if number % 3 else text}


def session(turns: int, seed: int = 0, *, tools_first: bool = False, **layout: Any) -> bytes:
    """A body as one client writes it: the same beginning at every turn."""
    function = {"name": "f", "description": "d" * 99, "input_schema": {}}
    tools = [{"type": "function", "function": function, **function}]  # of either API
    chat = [message(seed * 1000 + number) for number in range(turns)]
    fields = {"model": "tiny", "messages": chat, "tools": tools, "stream": True}
    if tools_first:
        fields = {"tools": tools, "stream": True, "messages": chat, "model": "tiny"}
    return json.dumps(fields, **layout).encode()


def learned(turns: int = 30, **layout: Any) -> Beginnings:
    """After two turns of a session: its beginning is remembered from the second on."""
    beginnings = Beginnings(64 * MIB)
    for number in (turns - 2, turns):
        apis.parse(CHAT, session(number, **layout), beginnings)
    return beginnings


@pytest.mark.parametrize("tools_first", [False, True])
@pytest.mark.parametrize("layout", [{}, {"separators": (",", ":")}, {"indent": 2}, {"ensure_ascii": False}])
def test_a_follow_up_is_read_from_where_it_is_new(layout: dict[str, Any], tools_first: bool) -> None:
    """However a client writes its JSON, a remembered session gives the request that the whole body gives."""
    beginnings = learned(tools_first=tools_first, **layout)
    assert beginnings.held_bytes > 0
    for turns in (30, 31, 33, 40, 40, 90):
        body = session(turns, tools_first=tools_first, **layout)
        read = beginnings.document(body)
        assert isinstance(read["messages"], Known)
        assert apis.parse(CHAT, body, beginnings) == apis.parse(CHAT, body)
        assert apis.parse(MESSAGES, body, beginnings) == apis.parse(MESSAGES, body)


def test_what_was_normalised_is_not_normalised_again() -> None:
    """A follow-up's old messages are the very objects of the turn before."""
    beginnings = learned()
    one = apis.parse(CHAT, session(32), beginnings).messages
    other = apis.parse(CHAT, session(34), beginnings).messages
    assert all(a is b for a, b in zip(one[: 30 - CHANGING], other, strict=False))


def test_the_last_messages_may_change() -> None:
    """A client that moves a marker from message to message, or tries its last one again, is still known."""
    beginnings = learned()
    chat = json.loads(session(34))
    chat["messages"][30 - CHANGING]["cache_control"] = {"type": "ephemeral"}
    read = beginnings.document(json.dumps(chat).encode())
    assert isinstance(read["messages"], Known)
    assert read == chat


def test_token_ids_are_remembered_too() -> None:
    """A prompt of ids goes on from where it is new; a number that only begins alike is another one."""
    beginnings = Beginnings(64 * MIB)
    ids = [number * 7919 % 100_000 for number in range(20_000)]
    for end in (19_000, 19_500):
        beginnings.document(json.dumps({"prompt": ids[:end]}).encode())
    for prompt in (ids, [*ids[:19_496], ids[19_496] * 10, *ids[19_497:]], [*ids[:19_497], 1.5, 2]):
        body = json.dumps({"prompt": prompt, "model": "m"}).encode()
        assert beginnings.document(body) == document(body)
    assert isinstance(beginnings.document(json.dumps({"prompt": ids}).encode())["prompt"], Known)


BODY = session(34)
TAIL = BODY.index(b'"role"', BODY.rindex(b'"tool_calls"') - 3000)
FRAGMENTS = [
    b",",
    b"]",
    b"[",
    b"{",
    b"}",
    b'"',
    b'"messages":[],',
    b'"messages":[{"role":"user","content":"x"}],',
    b',"\\u006dessages":[{"role":"user"}]',
    b"\\",
    b"\xff",
    b"\xef\xbb\xbf",
    b"null",
    b" \n",
    b'{"role":"user","content":"y"},',
    b"\\ud800",
    b"NaN",
]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(BODY)), st.integers(0, 40), st.sampled_from(FRAGMENTS) | st.just(b"")), max_size=4
    ),
    st.booleans(),
)
def test_no_edit_of_a_body_is_read_otherwise(edits: list[tuple[int, int, bytes]], late: bool) -> None:
    """Whatever comes behind a remembered beginning, or within one: the document, or the refusal, is the plain one."""
    body = BODY
    for place, cut, put in edits:
        if late:
            place = TAIL + place % (len(BODY) - TAIL)
        body = body[:place] + put + body[place + cut :]
    beginnings = learned()
    for _ in range(3):  # read, seen, remembered
        try:
            plain = document(body)
        except UnreadableBody:
            with pytest.raises(UnreadableBody):
                beginnings.document(body)
        else:
            assert beginnings.document(body) == plain


@pytest.mark.parametrize(
    "written",
    [
        b'{"messages":[],"x":%b,"messages":%b}',
        b'{"messages":%b,"messages":%b}',
        b'{"x":{"messages":%b},"messages":%b}',
        b'{"messages":%b,"\\u006dessages":%b}',
        b'[{"messages":%b},%b]',
        b'{"input":[],"messages":%b,"input":%b}',
    ],
)
def test_lists_of_one_name_are_told_apart(written: bytes) -> None:
    """Of a key that comes twice the last one counts, wherever the same list stands besides."""
    beginnings = Beginnings(64 * MIB)
    for turns in (28, 30, 34, 38):
        chat = json.dumps(json.loads(session(turns))["messages"]).encode()
        body = written % (chat, chat)
        assert beginnings.document(body) == document(body)


@pytest.mark.parametrize(
    "end",
    [
        b'], "messages": [{"role": "user", "content": "other"}]}',
        b'], "\\u006dessages": []}',
        b", ]}",
        b',, {"role": "user"}]}',
        b"}",
        b'] , "model": NaN}',
        b'], "model": "again"}',
        b'], "x": "\\ud800"}',
        b'], "x": "\xff"}',
    ],
)
def test_what_follows_a_beginning_is_read_as_it_stands(end: bytes) -> None:
    """A list that comes again behind the remembered one replaces it, and what is no JSON is none."""
    for turns in (30 - CHANGING, 34):  # right behind what is remembered, and behind some more
        body = session(turns)
        body = body[: body.rindex(b'], "tools"')] + end
        try:
            plain = document(body)
        except UnreadableBody:
            with pytest.raises(UnreadableBody):
                learned().document(body)
        else:
            assert learned().document(body) == plain


def test_memory_is_bounded() -> None:
    """What is held stays below the limit, the newest is kept, and 0 keeps nothing."""
    beginnings, most = Beginnings(4 * MIB), 0
    for seed in range(30):
        for turns in (28, 30, 32):
            beginnings.document(session(turns, seed))
            most = max(most, beginnings.held_bytes)
    assert MIB < most <= 4 * MIB
    assert isinstance(beginnings.document(session(34, 29))["messages"], Known)
    nothing = Beginnings(0)
    for turns in (28, 30, 32):
        assert not isinstance(nothing.document(session(turns))["messages"], Known)
    assert nothing.held_bytes == 0


def test_what_comes_once_is_not_kept() -> None:
    """A first sight costs no memory, and a short body is never kept."""
    beginnings = Beginnings(64 * MIB)
    for seed in range(20):
        beginnings.document(session(30, seed))
    for _ in range(3):
        beginnings.document(session(2))
    assert len(session(2)) < 2 * PIECE
    assert beginnings.held_bytes == 0
