"""Images in prompts: where their tokens stand, and what blocks say of them."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest

from loadgen.engine import anthropic_api, responses_api
from loadgen.engine.block_keys import extra_keys
from loadgen.engine.chat_api import ChatApi, Served
from loadgen.engine.chat_template import ChatTemplate
from loadgen.engine.errors import Refused
from loadgen.engine.media import PLACEHOLDER, Image, Span, expand, image, in_blocks
from loadgen.engine.options import MODEL_DIR
from tests.support.paths import MODEL

SIZE = 16
URL = "data:image/png;base64,iVBORw0KGgo="


@pytest.fixture(scope="module")
def api() -> ChatApi:
    return ChatApi(MODEL_DIR, Served(["tiny"], ["sql"], 16_384, SIZE))


def asking(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}], **more}


def shown(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}, **more}


TEXT = {"type": "text", "text": "What does this page show?"}


def started(api: ChatApi, body: dict[str, Any]) -> Any:
    return api.start(body | {"max_tokens": 4}, id="x", created=0).request


def test_a_placeholder_becomes_as_many_tokens_as_the_image_takes() -> None:
    """What stands around it stays; spans are those of the longer prompt."""
    tokens, spans = expand(array("I", [1, 9, 2, 9, 3]), 9, [Image("a", 2), Image("b", 3)])
    assert tokens.tolist() == [1, 9, 9, 2, 9, 9, 9, 3]
    assert spans == [Span("a", 1, 2), Span("b", 4, 3)]


@pytest.mark.parametrize("images", [[], [Image("a", 2)] * 2])
def test_as_many_placeholders_as_images(images: list[Image]) -> None:
    """A text that holds the placeholder, or a template that drops images, is no request that can be served."""
    with pytest.raises(ValueError, match="image"):
        expand(array("I", [1, 9, 3]), 9, images)


def test_blocks_name_the_images_in_them_and_where_those_begin() -> None:
    """As vLLM: the offset counts from the block's start and is negative for an image that began in a block before."""
    spans = [Span("a", 3, 10), Span("b", 13, 1), Span("c", 20, 4)]
    assert list(in_blocks(spans, 7, 4)) == [
        [("a", 3)],
        [("a", -1)],
        [("a", -5)],
        [("a", -9), ("b", 1)],
        [],
        [("c", 0)],
        [],
    ]


def test_extra_keys_stand_in_the_order_of_vllm() -> None:
    """LoRA adapter, images, salt; None where there is nothing."""
    spans = [Span("a", 1, 2)]
    assert extra_keys(2, size=2, images=spans) == [(("a", 1),), (("a", -1),)]
    assert extra_keys(2, "sql", "s", size=2, images=spans) == [("sql", ("a", 1), "s"), ("sql", ("a", -1))]
    assert extra_keys(2, None, "s", size=8, images=spans) == [(("a", 1), "s"), None]


def test_equal_images_have_equal_names(api: ChatApi) -> None:
    """In every process, whatever else is asked; another image has another name, and a client's own name counts."""
    one, again, other = (started(api, asking(TEXT, shown(url))) for url in (URL, URL, f"{URL}x"))
    assert one.keys == again.keys
    assert one.keys[0] == other.keys[0]
    assert set(one.keys[1:]).isdisjoint(other.keys[1:])
    assert image(shown(URL, uuid="mine")) == Image("mine", image(shown(URL)).tokens)  # type: ignore[union-attr]


def test_images_take_room_in_the_prompt(api: ChatApi) -> None:
    """The prompt is longer by the image's tokens, all of them in whole runs, and blocks in front of it are plain."""
    request = started(api, asking({"type": "text", "text": "word " * 50}, shown(URL)))
    plain = started(api, asking({"type": "text", "text": "word " * 50}))
    found = image(shown(URL))
    assert found is not None
    assert request.prompt == plain.prompt + found.tokens + 3  # <|vision_start|>, <|vision_end|> and a newline
    assert sum(extra is not None for extra in request.extras) in {found.tokens // SIZE + 1, found.tokens // SIZE + 2}


def test_every_api_takes_images(api: ChatApi) -> None:
    """Anthropic's blocks, in tools' results too, and OpenAI's input items are the same images."""
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    block = {"type": "image", "source": source}
    ours = api.prompt(asking(TEXT, shown(URL)))
    assert api.prompt(anthropic_api.API.chat({"messages": [{"role": "user", "content": [TEXT, block]}]})) == ours
    items = [{"type": "input_text", "text": TEXT["text"]}, {"type": "input_image", "image_url": URL}]
    assert api.prompt(responses_api.API.chat({"input": [{"role": "user", "content": items}]})) == ours
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "done"}, block]}
    chat = anthropic_api.API.chat({"messages": [{"role": "user", "content": [result]}]})
    assert [message["role"] for message in chat["messages"]] == ["tool", "user"]
    assert chat["messages"][1]["content"] == [shown(URL)]


def test_templates_of_strings_and_of_parts(tmp_path: Path) -> None:
    """A template that takes strings gets placeholders in front, joined by newlines; one that takes parts, in place."""
    (tmp_path / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message.role }}: {% for part in message.content %}"
        "{% if part.type == 'image' %}" + PLACEHOLDER + "{% else %}{{ part.text }}{% endif %}"
        "{% endfor %};{% endfor %}"
    )
    body = asking(TEXT, shown(URL), shown("https://example.com/b.png"))
    assert f"user\n{PLACEHOLDER}\n{PLACEHOLDER}\n{TEXT['text']}<|im_end|>" in ChatTemplate(MODEL_DIR).render(body)
    assert ChatTemplate(tmp_path).render(body) == f"user: {TEXT['text']}{PLACEHOLDER}{PLACEHOLDER};"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url"},
        {"type": "image_url", "image_url": {"url": 5}},
        {"type": "input_audio", "input_audio": {}},
        {"type": 5},
    ],
)
def test_what_is_no_image_is_refused(api: ChatApi, part: dict[str, Any]) -> None:
    """With 400, as vLLM refuses it; what the model does not sense, too."""
    with pytest.raises(Refused) as refused:
        started(api, asking(TEXT, part))
    assert refused.value.status == 400


def test_a_model_without_the_token_sees_no_images() -> None:
    """A vocabulary without the placeholder is that of a model of texts alone."""
    blind = ChatApi(MODEL, Served(["tiny"], [], 16_384, SIZE))
    with pytest.raises(Refused, match="sees no images"):
        started(blind, asking(TEXT, shown(URL)))
