"""media.py: one medium is told from another by what the client sent, in every API, and templates see nothing of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extproc.requests import apis
from extproc.requests.media import DIGEST_BYTES, Medium, digest
from extproc.requests.paths import Api

PNG = "data:image/png;base64,iVBORw0KGgo="
OTHER = "data:image/png;base64,AAAA"


def media(path: str, **body: Any) -> list[Medium]:
    """The media of a request, in their order."""
    request = apis.parse(path, json.dumps(body).encode())
    contents = [message["content"] for message in request.messages if not isinstance(message["content"], str)]
    return [part for content in contents for part in content if isinstance(part, Medium)]


def chat(*parts: Any) -> list[Medium]:
    return media(Api.CHAT, messages=[{"role": "user", "content": list(parts)}])


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "image_url", "image_url": {"url": PNG}}, "image"),
        ({"type": "image_url", "image_url": PNG}, "image"),
        ({"image_url": PNG}, "image"),
        ({"type": "input_image", "image_url": PNG}, "image"),
        ({"type": "image_embeds", "image_embeds": "AAAA"}, "image"),
        ({"type": "audio_url", "audio_url": {"url": "http://a/b.wav"}}, "audio"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "audio"),
        ({"type": "video_url", "video_url": {"url": "http://a/b.mp4"}}, "video"),
        ({"type": "image_url", "image_url": None, "uuid": "mine"}, "image"),
    ],
    ids=json.dumps,
)
def test_each_kind_of_medium_has_a_digest(part: dict[str, Any], kind: str) -> None:
    """Of what stands in its field; equal parts have equal digests, and to a template it is a part with a type."""
    (found,) = chat(part)
    assert found == {"type": kind}
    assert len(found.digest) == DIGEST_BYTES
    assert found.digest == chat(part)[0].digest
    assert found.digest != chat({"type": "image_url", "image_url": OTHER})[0].digest


def test_what_makes_a_medium_another() -> None:
    """Its data, its format or its `uuid`; not how its URL is written around, nor the detail that is asked for."""
    url = {"type": "image_url", "image_url": PNG}
    same = [
        {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}},
        {"type": "input_image", "image_url": PNG, "detail": "high"},
    ]
    others = [
        {"type": "image_url", "image_url": OTHER},
        {"type": "image_url", "image_url": PNG, "uuid": "mine"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
        {"type": "input_audio", "input_audio": {"format": "AAAA", "data": "wav"}},
        {"type": "image_embeds", "image_embeds": {"a": [1, 2.5, None], "b": "AAAA"}},
    ]
    assert {found.digest for found in chat(url, *same)} == {chat(url)[0].digest}
    assert len({found.digest for found in chat(url, *others)}) == 1 + len(others)


@pytest.mark.parametrize(
    ("url", "again"),
    [
        (
            "https://b.s3.amazonaws.com/k.png?X-Amz-Date=1&X-Amz-Signature=a",
            "https://b.s3.amazonaws.com/k.png?X-Amz-Date=2",
        ),
        ("https://s/k.png?id=5&Expires=1&Signature=a", "https://s/k.png?id=5&Expires=2&Signature=b"),
        ("https://a.blob/k.png?sv=2024&se=1&sig=a", "https://a.blob/k.png?sv=2024&se=2&sig=b"),
        ("https://s/k.png?", "https://s/k.png"),
    ],
)
def test_a_url_that_is_signed_anew_is_the_same_medium(url: str, again: str) -> None:
    """Agents fetch a new signature for every request; what it leads to is the same."""
    assert digest(None, url) == digest(None, {"url": again})


def test_other_parameters_of_a_url_count() -> None:
    """They may say which picture it is; and data is no URL."""
    urls = [
        "https://s/k?id=5",
        "https://s/k?id=6",
        "https://s/k",
        "https://s/k?design=1",
        "data:,a?sig=1",
        "data:,a?sig=2",
    ]
    assert len({digest(None, url) for url in urls}) == len(urls)


def test_a_uuid_stands_for_the_medium() -> None:
    """A client sends the data once, and then only what it calls it."""
    first = {"type": "image_url", "image_url": {"url": PNG}, "uuid": "mine"}
    later = {"type": "image_url", "image_url": None, "uuid": "mine"}
    assert chat(first)[0].digest == chat(later)[0].digest


def test_the_other_apis_media_are_told_apart_too() -> None:
    """Anthropic's images, also those in a tool's result, and images in OpenAI's responses."""
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    blocks = [
        {"type": "image", "source": source},
        {"type": "image", "source": {**source, "data": "AAAA"}},
        {"type": "image", "source": {"type": "url", "url": "http://a/b.png"}},
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": source}]},
    ]
    found = [media(Api.MESSAGES, max_tokens=1, messages=[{"role": "user", "content": [block]}]) for block in blocks]
    (one,), (two,), (three,), (four,) = found
    assert len({one.digest, two.digest, three.digest}) == 3
    assert four.digest == one.digest
    items = [{"role": "user", "content": [{"type": "input_image", "image_url": url}]} for url in (PNG, OTHER)]
    assert [each.digest for each in media(Api.RESPONSES, input=items)] == [
        chat({"type": "image_url", "image_url": url})[0].digest for url in (PNG, OTHER)
    ]


@pytest.mark.parametrize("value", [None, 5, 1.5, True, [], [PNG], {}, {"url": 5}, {"url": {"a": [PNG]}}, 10**30])
def test_any_value_has_a_digest(value: Any) -> None:
    """Whatever a client puts there: the engine judges it."""
    assert len(digest(None, value)) == len(digest(5, value)) == DIGEST_BYTES
