"""media.py: a prompt with images, audio or video, with a stand-in for each."""

from __future__ import annotations

import json
import shutil
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from extproc.base.media import MEDIUM_BYTES, STAND_IN
from extproc.base.model import MediaText
from extproc.prompts.renderer import PlainRenderer, PromptRenderer, Renderer
from extproc.requests import apis
from extproc.requests.paths import Api
from tests.support.paths import MODEL, TESTS

Message = dict[str, Any]
STYLES = ["parts", "qwen3", "collected", "plain"]


@cache
def renderer(style: str) -> PromptRenderer:
    """The fixtures' model with one of the tests' templates; `plain` has none."""
    if style == "plain":
        return PlainRenderer()
    with TemporaryDirectory() as directory:
        path = Path(directory)
        shutil.copytree(MODEL, path, dirs_exist_ok=True)
        config = json.loads((path / "tokenizer_config.json").read_text("utf-8"))
        del config["chat_template"]
        (path / "tokenizer_config.json").write_text(json.dumps(config | {"bos_token": "<s>", "image_token": "<i>"}))
        shutil.copy(TESTS / "templates" / f"{style}.jinja", path / "chat_template.jinja")
        return Renderer.load(path)


def render(style: str, *messages: Message) -> MediaText:
    prompt = renderer(style).render(apis.parse(Api.CHAT, json.dumps({"messages": messages}).encode()))
    assert prompt.media is not None
    return prompt.media


def image(name: str = "A") -> Message:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{name}"}}


def user(*parts: Any) -> Message:
    return {"role": "user", "content": [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]}


def reply(text: str) -> Message:
    return {"role": "assistant", "content": text}


SYSTEM = {"role": "system", "content": "You drive a browser."}


@pytest.mark.parametrize("style", STYLES)
def test_without_media_there_is_none(style: str) -> None:
    """Such a prompt is compared as it stands."""
    body = json.dumps({"messages": [SYSTEM, user("go"), reply("done"), user("more")]}).encode()
    assert renderer(style).render(apis.parse(Api.CHAT, body)).media is None


@pytest.mark.parametrize("style", STYLES)
def test_each_turn_of_a_session_continues_the_one_before(style: str) -> None:
    """What one turn had up to its last words is where the next turn begins; the history ends with the last reply."""
    session = [SYSTEM, user("whatison", image(), "thispage?")]
    before = render(style, *session)
    assert before.history == 0
    words = b"thispage?"
    for turn in range(4):
        session += [reply(f"abutton{turn}"), user(image(), image(), f"now{turn}")]
        after = render(style, *session)
        assert after.data.startswith(before.data[: before.data.rfind(words)])
        said, words = f"abutton{turn}".encode(), f"now{turn}".encode()
        assert after.data.index(said) + len(said) <= after.history <= after.data.index(words)
        assert after.head == before.head
        assert after.media[: len(before.media)] == before.media
        before = after


@pytest.mark.parametrize("style", STYLES)
def test_each_medium_has_its_place_and_its_kind(style: str) -> None:
    """Whatever message it is in."""
    audio = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    tool = {"role": "tool", "tool_call_id": "c", "content": [image(), {"type": "text", "text": "R"}]}
    found = render(style, user(image(), audio, "a"), reply("b"), tool, user("c"))
    assert [kind for _, kind in found.media] == ["user image", "user audio", "tool image"]
    assert all(found.data.startswith(STAND_IN, place) for place, _ in found.media)
    places = [place for place, _ in found.media]
    assert places[0] == found.head
    assert all(later - earlier >= MEDIUM_BYTES for earlier, later in pairwise(places))


@pytest.mark.parametrize("style", ["parts", "qwen3", "collected"])
def test_behind_the_first_medium_nothing_is_left_that_models_add_around_it(style: str) -> None:
    """Neither white space nor added tokens; the text before it is trimmed and otherwise as it stands."""
    found = render(style, SYSTEM, user("what is on\n", image(), " this <|im_start|> page ?\n"), reply("a b"), user("c"))
    head, tail = found.data[: found.head], found.data[found.head :]
    assert b"You drive a browser." in head
    assert head == head.rstrip()
    assert b"thispage?" in tail
    assert b"<|im_" not in tail
    assert not set(tail) & set(b" \n\t")


def test_a_mark_of_the_clients_own_harms_nobody() -> None:
    """A client may write the character that stands in a medium's place: another text, the same every time."""
    session = [user("\x1a a \x1a", image(), "b \x1a"), reply("c\x1a"), user("d")]
    assert render("parts", *session) == render("parts", *session)
