"""reply_keys.py: a conversation with media is told by what was said and shown, however the client writes it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extproc.base.media import MEDIUM_BYTES
from extproc.requests import apis
from extproc.requests.paths import Api
from extproc.requests.reply_keys import Turn, turns

Message = dict[str, Any]


def of(*messages: Message, seed: int = 7) -> list[Turn]:
    return turns(apis.parse(Api.CHAT, json.dumps({"messages": messages}).encode()).messages, seed)


def keys(*messages: Message, seed: int = 7) -> list[int]:
    return [turn.key for turn in of(*messages, seed=seed)]


def image(name: str) -> Message:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{name}"}}


def user(*parts: Any) -> Message:
    return {"role": "user", "content": [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]}


def reply(text: str, **more: Any) -> Message:
    return {"role": "assistant", "content": text, **more}


SYSTEM = {"role": "system", "content": "You drive a browser."}
ASKED = (SYSTEM, user("what is this?", image("A")))


def test_without_media_there_is_nothing_to_tell() -> None:
    """Events tell everything of such a conversation."""
    assert keys(SYSTEM, user("go"), reply("done"), user("more")) == []


def test_each_turn_finds_the_one_before() -> None:
    """The request as a whole has the key under which the next turn finds the reply to it; earlier ones stay."""
    session = [*ASKED]
    before = keys(*session)
    assert len(before) == 1
    for turn in range(4):
        session += [reply(f"a button {turn}"), user(f"now {turn}", image(f"B{turn}"))]
        after = keys(*session)
        assert after[:-1] == before
        assert len(set(after)) == turn + 2
        before = after


def test_replies_before_the_first_medium_are_the_events_to_tell() -> None:
    """Only what stands behind an image is told by what was sent."""
    session = [SYSTEM, user("a"), reply("b"), user("c"), reply("d")]
    assert len(keys(*session, user("e", image("A")))) == 1
    assert len(keys(*session, user("e", image("A")), reply("f"), user("g"))) == 2


@pytest.mark.parametrize(
    "other",
    [
        (SYSTEM, user("what is this?", image("B"))),
        (SYSTEM, user("what is that?", image("A"))),
        (SYSTEM, user(image("A"), "what is this?")),
        (SYSTEM, user("what is this?", image("A"), image("A"))),
        (SYSTEM, user("what is", " this?", image("A"))),
        (user("what is this?", image("A")),),
        ({**SYSTEM, "role": "user"}, ASKED[1]),
    ],
)
def test_what_makes_it_another_conversation(other: tuple[Message, ...]) -> None:
    """Another image, text, order or role."""
    assert keys(*other) != keys(*ASKED)


def test_what_stands_before_parts_conversations_too() -> None:
    """The seed: another system prompt with its tools, another adapter, another tenant."""
    assert keys(*ASKED, seed=8) != keys(*ASKED)


@pytest.mark.parametrize(
    "other",
    [
        (
            SYSTEM,
            {"role": "user", "content": [{"type": "text", "text": "what is this?", "cache_control": {}}, image("A")]},
        ),
        ({"role": "system", "content": [{"type": "text", "text": "You drive a browser."}]}, ASKED[1]),
        (SYSTEM, {**ASKED[1], "name": "me"}),
    ],
)
def test_how_a_client_writes_it_does_not_matter(other: tuple[Message, ...]) -> None:
    """Clients move their cache markers from turn to turn, and write a text as a string or as a part."""
    assert keys(*other) == keys(*ASKED)


def test_calls_count_and_thoughts_do_not() -> None:
    """A client may drop earlier thoughts, and give calls ids of its own."""

    def call(name: str, arguments: str, number: str = "1") -> Message:
        function = {"name": name, "arguments": arguments}
        return reply("", tool_calls=[{"id": number, "type": "function", "function": function}])

    plain = keys(*ASKED, call("click", '{"x": 1}'), user("so"))
    assert keys(*ASKED, {**call("click", '{"x": 1}', "2"), "reasoning": "hm"}, user("so")) == plain
    for other in (call("click", '{"x": 2}'), call("drag", '{"x": 1}'), reply("")):
        assert keys(*ASKED, other, user("so"))[0] == plain[0]
        assert keys(*ASKED, other, user("so"))[1] != plain[1]


def test_ends_grow_with_texts_and_media() -> None:
    """A medium counts for some hundred tokens of text."""
    found = of(*ASKED, reply("x" * 1000), user("now", image("B")), reply("y"), user("z"))
    first, second, whole = (turn.end for turn in found)
    assert MEDIUM_BYTES + 1000 < first < MEDIUM_BYTES + 1100
    assert MEDIUM_BYTES < second - first < MEDIUM_BYTES + 100
    assert 0 < whole - second < 50
