"""Template, normalisation and tokenizer of the simulated engine agree with what vLLM 0.32 tokenised."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadgen.engine.chat_template import ChatError, ChatTemplate
from loadgen.engine.media import PLACEHOLDER
from loadgen.engine.options import MODEL_DIR
from loadgen.engine.tokenizer import Tokens
from tests.support.recordings import MODEL, lines, names

# Recorded chats that vLLM refused for what the prompt would be; it refused others for other fields of the body.
UNRENDERABLE = {"tools: []", "bare strings as parts", "lone surrogate escape"}
RECORDINGS = [
    name
    for name in names("0.32.0", "0.32.0-render", "0.32.0-sha256-bytes", "0.32.0-dp2")
    if not name.endswith(("B2_dup_evict", "E_completions", "G_messages_responses"))  # these have no chats
]


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate(MODEL_DIR)


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return Tokens(MODEL_DIR)


def test_the_package_carries_the_recorded_model() -> None:
    """The model directory of the engine is the one that the recordings were made with, and three tokens for images."""
    recorded = {path.name: path.read_text("utf-8") for path in MODEL.iterdir()}
    ours = {name: (MODEL_DIR / name).read_text("utf-8") for name in recorded}
    tokenizer, config = json.loads(ours.pop("tokenizer.json")), json.loads(ours.pop("config.json"))
    *added, start, end, pad = tokenizer["added_tokens"]
    assert start["content"] + pad["content"] + end["content"] == PLACEHOLDER
    assert tokenizer | {"added_tokens": added} == json.loads(recorded.pop("tokenizer.json"))
    assert config | {"vocab_size": 4096} == json.loads(recorded.pop("config.json"))
    assert ours == recorded


@pytest.mark.parametrize("name", RECORDINGS)
def test_prompts_are_tokenised_as_by_vllm(name: str, template: ChatTemplate, tokens: Tokens) -> None:
    """Each recorded chat gives exactly the token ids that vLLM gave it, and each refused one is refused."""
    compared = 0
    for line in lines(name):
        if line["kind"] != "request" or line["path"] != "/v1/chat/completions" or line["status"] == 404:
            continue
        body = json.loads(bytes.fromhex(line["raw_body_hex"])) if line.get("raw_body_hex") else line["body"]
        if line.get("note") in UNRENDERABLE:
            assert line["status"] == 400
            with pytest.raises(ValueError):  # noqa: PT011 - which one depends on what is wrong
                tokens.encode(template.render(body))
        elif line["status"] == 200 and line.get("prompt_token_ids"):
            assert list(tokens.encode(template.render(body))) == line["prompt_token_ids"], line.get("note")
            compared += 1
    assert compared


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None},
        {"messages": []},
        {"messages": ["hello"]},
        {"messages": [{"content": "no role"}]},
        {"messages": [{"role": 7, "content": "x"}]},
        {"messages": [{"role": "user", "content": 7}]},
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x"}}]}]},
        {"messages": [{"role": "user", "content": [{"type": [], "text": "x"}]}]},
        {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
        {"messages": [{"role": "user", "content": "x"}], "tools": [{}]},
        {"messages": [{"role": "user", "content": "x"}], "tools": "all"},
        {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": 3},
        {"messages": [{"role": "user", "content": "x"}], "continue_final_message": True},
    ],
)
def test_wrong_shapes_are_refused(body: dict[str, Any], template: ChatTemplate) -> None:
    """A body of the wrong shape is an error of the client, whatever is wrong with it."""
    with pytest.raises(ChatError):
        template.render(body)


def test_a_final_message_is_continued(template: ChatTemplate) -> None:
    """With continue_final_message the prompt ends where the last message does, so that the reply goes on from there."""
    body = {
        "messages": [{"role": "user", "content": "say a"}, {"role": "assistant", "content": "aaa "}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    }
    assert template.render(body).endswith("<|im_start|>assistant\naaa ")


def test_remembered_messages_do_not_change_tokens(tokens: Tokens) -> None:
    """Splitting a text at added tokens, and remembering the parts, gives the ids of the text as a whole."""
    text = "<|im_start|>user\n a<tool_call>\n<|im_end|><|im_end|>\n  \n<think></think> b\n\n<|endoftext|>é"
    for _ in range(2):
        assert tokens.encode(text) == tokens._whole(text)


def test_words_stay_words(tokens: Tokens) -> None:
    """Any row of the words that replies are made of re-tokenises to itself, within a chat as well."""
    words = tokens.words()
    ids = [token for token, _ in words]
    text = "".join(text for _, text in words)
    assert list(tokens.encode(text)) == ids
    assert list(tokens.encode(f"assistant\n{text}<|im_end|>"))[-len(ids) - 1 : -1] == ids
