"""prompt.py: rendered prompts against what real engines tokenised, their history, and every way to fail."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from dataclasses import astuple
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from extproc.base import blocks
from extproc.base.errors import ConfigError, RenderError
from extproc.base.model import Prompt
from extproc.prompts.renderer import PlainRenderer, PromptRenderer, Renderer
from extproc.prompts.tokenizer.vocabulary import Vocabulary
from extproc.requests import apis
from tests.support.paths import TESTS

CHAT = "/v1/chat/completions"
MODEL = TESTS / "fixtures" / "model"
TEMPLATES = TESTS / "templates"
RECORDINGS = sorted((TESTS / "fixtures").glob("*/*.jsonl.gz"))

# A machine that is busy with other tests must not fail one of these.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

# What ends a turn in each style; `collected` writes nothing until it has read everything.
END_OF_TURN = {
    "qwen3": "<|im_end|>\n",
    "llama3": "<|eot_id|>",
    "mistral": "<|im_end|>",
    "deepseek": "<\uff5cend▁of▁sentence\uff5c>",
    "parts": "<|im_end|>\n",
}


def lines(path: Path) -> Iterator[Any]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer.load(MODEL)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.load(MODEL)


def model_dir(directory: Path, template: str | None = None, **config: Any) -> Path:
    """A copy of the fixtures' model with another template and other entries in tokenizer_config.json."""
    shutil.copytree(MODEL, directory, dirs_exist_ok=True)
    (directory / "chat_template.jinja").unlink()
    if template is not None:
        (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    original = json.loads((directory / "tokenizer_config.json").read_text())
    del original["chat_template"]
    (directory / "tokenizer_config.json").write_text(json.dumps(original | config))
    return directory


@pytest.fixture(scope="module")
def styles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Renderer]:
    """A renderer for each of tests/templates, on the date of the recording."""
    date = datetime.fromisoformat(next(lines(TEMPLATES / "vllm-0.32.0.jsonl.gz"))["date"])
    special = {"bos_token": "<|endoftext|>", "image_token": "<|im_start|>"}
    return {
        path.stem: Renderer.load(
            model_dir(tmp_path_factory.mktemp(path.stem), path.read_text(encoding="utf-8"), **special), lambda: date
        )
        for path in TEMPLATES.glob("*.jinja")
    }


def render(renderer: PromptRenderer, *messages: dict[str, Any], **more: Any) -> Prompt:
    return renderer.render(apis.parse(CHAT, json.dumps({"messages": messages, **more}).encode()))


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, *calls: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": f"{i:09}", "type": "function", "function": {"name": "f", "arguments": json.dumps({"p": trace})}}
            for i, trace in enumerate(calls)
        ]
    return message


def tool(content: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": "000000000"}


TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]


# --- the engine's own prompts


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: f"{path.parent.name}/{path.name.split('.')[0]}")
def test_recorded_prompts_render_to_the_engines_bytes(path: Path, renderer: Renderer, vocabulary: Vocabulary) -> None:
    """Every chat that a real vLLM (0.11 to 0.32) tokenised renders to the bytes of its token ids. No exceptions: even
    requests that were refused for other reasons (an empty `tools`, a template of their own) have recorded ids."""
    for line in lines(path):
        if line["kind"] != "request" or line.get("path") != CHAT or not line.get("prompt_token_ids"):
            continue
        body = bytes.fromhex(line["raw_body_hex"]) if line.get("raw_body_hex") else json.dumps(line["body"]).encode()
        prompt = renderer.render(apis.parse(line["path"], body))
        assert prompt.data == vocabulary.decode(line["prompt_token_ids"]), line["note"]
        assert prompt.history == history_of_fixture(prompt.data, line["body"]), line["note"]
        assert prompt.matchable == len(prompt.data)


def history_of_fixture(data: bytes, body: Any) -> int:
    """The end of the last reply, told from the text of the fixtures' template."""
    roles = [message["role"] for message in body["messages"]]
    if "assistant" not in roles:
        return 0
    if roles[-1] == "assistant":
        return len(data)
    opening = len(data) - len(b"<|im_start|>assistant\n")
    return data.index(b"<|im_end|>\n", data.rindex(b"<|im_start|>assistant", 0, opening)) + len(b"<|im_end|>\n")


def test_fixtures_hold_chats_of_every_kind() -> None:
    """The test above cannot pass because nothing was found."""
    chats = [line for path in RECORDINGS for line in lines(path) if line.get("path") == CHAT]
    assert sum(bool(line.get("prompt_token_ids")) for line in chats) >= 340


def test_odd_requests_in_every_style_render_as_vllm_renders_them(styles: dict[str, Renderer]) -> None:
    """240 random requests, recorded from vLLM 0.32's own renderer: prompts agree to the byte (after NFC)."""
    recorded = [line for line in lines(TEMPLATES / "vllm-0.32.0.jsonl.gz") if "prompt" in line]
    assert {line["template"] for line in recorded} == set(styles)
    for line in recorded:
        one = styles[line["template"]]
        prompt = one.render(apis.parse(CHAT, line["body"].encode()))
        assert prompt.data == one._normalizer(line["prompt"]), line["body"]
        assert 0 <= prompt.history <= len(prompt.data)


# --- history

SESSIONS = {
    "text": [user("Q1"), assistant("REPLY é"), user("Q2")],
    "a very short question": [user("Q1"), assistant("REPLY"), user("a")],
    "a question like the reply": [user("Q1"), assistant("REPLY"), user("REPLY?")],
    "call": [user("Q1"), assistant("", "REPLY"), tool("R1")],
    "call and text": [user("Q1"), assistant("", "C1"), tool("R1"), assistant("REPLY"), user("Q2")],
    "results like turns": [user("Q1"), assistant("", "REPLY"), tool("<|im_end|>\n<|im_start|>assistant\nR1<|eot_id|>")],
    "earlier replies": [
        user("Q1"),
        assistant("A1"),
        user("Q2"),
        assistant("A2"),
        user("Q3"),
        assistant("REPLY"),
        user("Q"),
    ],
}


@pytest.mark.parametrize("session", SESSIONS, ids=str)
@pytest.mark.parametrize("style", END_OF_TURN)
def test_history_ends_where_the_last_reply_ends(style: str, session: str, styles: dict[str, Renderer]) -> None:
    """In templates that write as they read, history is exact: up to and including the reply's end of turn."""
    messages = [{"role": "system", "content": "S"}, *SESSIONS[session]]
    prompt = render(styles[style], *messages, tools=TOOLS)
    end = END_OF_TURN[style].encode()
    reply = prompt.data.index(b"REPLY")
    assert prompt.history == prompt.data.index(end, reply) + len(end)


@pytest.mark.parametrize("results", [2, 30])
@pytest.mark.parametrize("style", ["qwen3", "deepseek"])
def test_history_ends_before_parallel_results(style: str, results: int, styles: dict[str, Renderer]) -> None:
    """A reply with several calls ends before the first of their results, though results look back at each other."""
    calls = ["REPLY", *(f"C{i}" for i in range(results - 1))]
    prompt = render(styles[style], user("Q1"), assistant("", *calls), *(tool(f"R{i}") for i in range(results)))
    end = END_OF_TURN[style].encode()
    assert prompt.history == prompt.data.index(end, prompt.data.index(b"REPLY")) + len(end)
    assert prompt.data.index(b"R0") > prompt.history


def test_history_of_a_template_that_collects_its_output(styles: dict[str, Renderer]) -> None:
    """Where a template writes everything at once, history is found from a second rendering, within a prompt block."""
    for session in ("text", "a very short question", "earlier replies"):
        data, history, *_ = astuple(render(styles["collected"], *SESSIONS[session]))
        end = data.index(b"<|im_end|>\n", data.index(b"REPLY")) + len(b"<|im_end|>\n")
        assert end <= history < end + blocks.DEFAULT_SIZE


def test_without_a_reply_there_is_no_history(styles: dict[str, Renderer]) -> None:
    """A first turn carries no history, in any style."""
    for style in styles.values():
        assert render(style, user("Q1")).history == 0


def test_a_prompt_that_ends_with_a_reply_is_all_history(renderer: Renderer) -> None:
    """With nothing after the last reply, history is the prompt."""
    for more in ({}, {"continue_final_message": True, "add_generation_prompt": False}):
        prompt = render(renderer, user("Q1"), assistant("A1"), **more)
        assert prompt.history == len(prompt.data)


@UNHURRIED
@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool", "system"]), st.text(max_size=20)), min_size=1))
def test_history_never_exceeds_the_prompt(turns: list[tuple[str, str]]) -> None:
    """Whatever the turns and their texts, history lies within the prompt, and turns are counted."""
    request = apis.parse(CHAT, json.dumps({"messages": [{"role": r, "content": c} for r, c in turns]}).encode())
    assert request.turn == [role for role, _ in turns].count("assistant")
    for one in (cached_renderer(), PlainRenderer()):
        prompt = one.render(request)
        assert 0 <= prompt.history <= len(prompt.data) == prompt.matchable
        assert bool(prompt.history) == bool(request.turn)


@cache
def cached_renderer() -> Renderer:
    return Renderer.load(MODEL)


# --- forms of messages


def test_developer_is_system_unless_the_template_names_it(renderer: Renderer, styles: dict[str, Renderer]) -> None:
    """vLLM renames `developer` and merges system messages into the first, unless the template knows the role."""
    developer = {"role": "developer", "content": "D"}
    assert render(renderer, developer, user("Q")) == render(renderer, {"role": "system", "content": "D"}, user("Q"))
    merged = render(renderer, {"role": "system", "content": "S"}, user("Q"), developer)
    assert merged == render(renderer, {"role": "system", "content": "S\n\nD"}, user("Q"))
    assert b"<|im_start|>developer\nDnull" in render(styles["parts"], developer, user("Q")).data


def test_a_developer_message_that_is_first_stays_whole(tmp_path: Path) -> None:
    """Only messages that move are merged: a name survives, tools do not."""
    one = Renderer.load(model_dir(tmp_path / "model", "{{ messages | tojson }}"))
    developer = {"role": "developer", "content": "D", "name": "n", "tools": []}
    assert json.loads(render(one, developer).data) == [{"role": "system", "content": "D", "name": "n"}]
    merged = json.loads(render(one, user("Q"), developer).data)
    assert merged == [{"role": "system", "content": "D"}, user("Q")]


def test_parts_are_joined_for_templates_that_want_strings(renderer: Renderer) -> None:
    """Text parts become lines, empty ones vanish."""
    parts = [{"type": "text", "text": text} for text in ("a", "", "b")]
    assert render(renderer, user(parts)) == render(renderer, user("a\nb"))


def test_a_final_message_is_left_open(renderer: Renderer, styles: dict[str, Renderer]) -> None:
    """continue_final_message cuts the prompt after the text of the last message, also where a template trims it."""
    options = {"continue_final_message": True, "add_generation_prompt": False}
    assert render(renderer, user("Q"), assistant("so far "), **options).data.endswith(b"assistant\nso far ")
    assert render(styles["llama3"], user("Q"), assistant("so far "), **options).data.endswith(b"\n\nso far")
    parts = [{"type": "text", "text": "so"}, {"type": "text", "text": " far"}]
    assert render(styles["parts"], user("Q"), assistant(parts), **options).data.endswith(b"assistant\nso far")


def test_special_tokens_are_added_on_request(tmp_path: Path) -> None:
    """add_special_tokens puts the tokenizer's own frame around the prompt, history and all."""
    directory = model_dir(tmp_path / "model", (MODEL / "chat_template.jinja").read_text())
    spec = json.loads((directory / "tokenizer.json").read_text())
    frame = [{"SpecialToken": {"id": name, "type_id": 0}} for name in ("<|endoftext|>", "<|im_end|>")]
    spec["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [frame[0], {"Sequence": {"id": "A", "type_id": 0}}, frame[1]],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            name: {"id": name, "ids": [token_id], "tokens": [name]}
            for name, token_id in (("<|endoftext|>", 4087), ("<|im_end|>", 4089))
        },
    }
    (directory / "tokenizer.json").write_text(json.dumps(spec))
    framed = Renderer.load(directory)
    plain = render(framed, user("Q"), assistant("A"), user("Q"))
    added = render(framed, user("Q"), assistant("A"), user("Q"), add_special_tokens=True)
    assert added.data == b"<|endoftext|>" + plain.data + b"<|im_end|>"
    assert added.history == plain.history + len(b"<|endoftext|>")


def test_a_prompt_matches_up_to_its_first_image(renderer: Renderer, styles: dict[str, Renderer]) -> None:
    """What follows an image depends on the image, so it is not matched; before it, everything is."""
    image = {"type": "image_url", "image_url": {"url": "http://x"}}
    text = {"type": "text", "text": "before"}
    prompt = render(styles["parts"], user("Q"), assistant("A"), user([text, image, text, image]))
    assert prompt.data[: prompt.matchable].endswith(b"<|im_start|>user\nbefore")
    assert prompt.data[prompt.matchable :].startswith(b"<|vision_start|>")
    assert prompt.history < prompt.matchable
    # a template of strings gets its images in front of the text
    prompt = render(renderer, user("Q"), assistant("A"), user([text, image]), user("later"))
    assert prompt.data[: prompt.matchable].endswith(b"A<|im_end|>\n<|im_start|>user\n")


# --- templates and files


def test_a_template_for_tools_is_used_with_tools(tmp_path: Path) -> None:
    """tokenizer_config.json may name several templates; `tool_use` is for requests with tools."""
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    one = Renderer.load(model_dir(tmp_path / "list", chat_template=named))
    assert (render(one, user("Q")).data, render(one, user("Q"), tools=TOOLS).data) == (b"plain", b"tools")
    directory = model_dir(tmp_path / "files", "plain")
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    one = Renderer.load(directory)
    assert (render(one, user("Q")).data, render(one, user("Q"), tools=TOOLS).data) == (b"plain", b"tools")


def test_a_template_is_found_where_transformers_finds_it(tmp_path: Path) -> None:
    """The file goes before tokenizer_config.json, and that before a processor's chat_template.json."""
    directory = model_dir(tmp_path / "model", "file", chat_template="config")
    (directory / "chat_template.json").write_text('{"chat_template": "processor"}')
    assert render(Renderer.load(directory), user("Q")).data == b"file"
    (directory / "chat_template.jinja").unlink()
    assert render(Renderer.load(directory), user("Q")).data == b"config"
    (directory / "tokenizer_config.json").write_text("{}")
    assert render(Renderer.load(directory), user("Q")).data == b"processor"


def test_templates_see_special_tokens_and_arguments(tmp_path: Path) -> None:
    """Named tokens of every spelling are variables; chat_template_kwargs add to them and override them."""
    template = "{{ bos_token }}|{{ eos_token }}|{{ image_token }}|{{ boi_token }}|{{ unk_token }}|{{ mine }}"
    config = {"bos_token": {"content": "B"}, "eos_token": "E", "image_token": "I", "add_bos_token": True}
    one = Renderer.load(model_dir(tmp_path / "model", template, extra_special_tokens={"boi_token": "O"}, **config))
    assert render(one, user("Q")).data == b"B|E|I|O||"
    assert render(one, user("Q"), chat_template_kwargs={"mine": 1, "bos_token": "X"}).data == b"X|E|I|O||1"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[9].content.text }}",
        "{{ messages[0].content + 1 }}",
        "{{ nothing() }}",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ messages.__class__.__mro__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{{ messages | tojson(indent='x', separators=5) }}",
        "{% include 'other' %}",
    ],
)
def test_a_template_that_fails_is_a_render_error(tmp_path: Path, template: str) -> None:
    """Whatever a template raises at a request is one error; the request is routed by load."""
    one = Renderer.load(model_dir(tmp_path / "model", template))
    with pytest.raises(RenderError):
        render(one, user("Q"))


def test_a_prompt_far_longer_than_its_request_is_a_render_error(styles: dict[str, Renderer]) -> None:
    """Indentation makes hundreds of megabytes of a tool that is nested deeply; an indented schema is no such tool."""
    schema: Any = {"type": "object", "properties": {f"p{i}": {"enum": ["a", "b"]} for i in range(9)}}
    for _ in range(4):
        schema = {"type": "object", "properties": {"inner": schema}}
    honest = [{"type": "function", "function": {"name": f"f{i}", "parameters": schema}} for i in range(1000)]
    assert len(render(styles["llama3"], user("Q"), tools=honest).data) > 1_000_000
    bomb = b'{"a":' * 800 + b"[" + b"1," * 20_000 + b"1]" + b"}" * 800
    body = (
        b'{"tools":[{"type":"function","function":{"name":"f","parameters":%b}}],"messages":[{"role":"user"}]}' % bomb
    )
    request = apis.parse(CHAT, body)
    with pytest.raises(RenderError, match="far more text"):
        styles["llama3"].render(request)


def test_a_final_message_that_cannot_be_continued_says_why(styles: dict[str, Renderer]) -> None:
    """Contradicting options, a final message without text, a template that drops it: refused as in transformers."""
    options = {"continue_final_message": True, "add_generation_prompt": False}
    with pytest.raises(RenderError, match="needs add_generation_prompt to be false"):
        render(styles["qwen3"], user("Q"), continue_final_message=True)
    with pytest.raises(RenderError, match="has no text to continue"):
        render(styles["parts"], user("Q"), assistant([]), **options)
    with pytest.raises(RenderError, match="does not write the final message"):
        render(styles["deepseek"], user("Q"), {"role": "weird", "content": "so far"}, **options)


def test_lone_surrogates_in_arguments_are_a_render_error(renderer: Renderer) -> None:
    """Python's JSON lets them through in a call's arguments; no engine can tokenise them."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}
    for one in (renderer, PlainRenderer()):
        with pytest.raises(RenderError):
            render(one, user("Q"), {"role": "assistant", "tool_calls": [call]}, tool("R"))


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    """An operator reads which directory or file is missing and where to get it."""
    with pytest.raises(ConfigError, match="nowhere is not a directory"):
        Renderer.load(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json.*copy it from the model"):
        Renderer.load(tmp_path)
    with pytest.raises(ConfigError, match=r"has no chat template: copy chat_template\.jinja"):
        Renderer.load(model_dir(tmp_path / "model"))
    with pytest.raises(ConfigError, match="does not compile"):
        Renderer.load(model_dir(tmp_path / "model", "{% for %}"))
    (tmp_path / "model" / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json cannot be read"):
        Renderer.load(tmp_path / "model")
    (tmp_path / "model" / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ConfigError, match="not a JSON object"):
        Renderer.load(tmp_path / "model")
    (tmp_path / "model" / "tokenizer_config.json").write_text("{}")
    (tmp_path / "model" / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="chat template cannot be read"):
        Renderer.load(tmp_path / "model")


# --- without a template


def test_plain_prompts_grow_with_their_session() -> None:
    """A follow-up's plain prompt begins with the prompt before it and the reply, so routed blocks keep matching."""
    turns = [user("Q1"), assistant("A1", "C1"), tool("R1"), assistant("A2"), user([{"type": "text", "text": "Q2"}])]
    earlier = b""
    for count in range(1, len(turns) + 1):
        prompt = render(PlainRenderer(), *turns[:count], tools=TOOLS)
        assert prompt.data.startswith(earlier)
        earlier = prompt.data
        replies = [i for i in range(count) if turns[i]["role"] == "assistant"]
        upto = render(PlainRenderer(), *turns[: replies[-1] + 1], tools=TOOLS).data if replies else b""
        assert prompt.history == len(upto)
    assert all(text in earlier for text in (b'"name": "f"', b"Q1", b'"p": "C1"', b"R1", b"A2", b"Q2"))


def test_plain_prompts_match_up_to_their_first_image() -> None:
    """Two images look the same in a plain prompt, so nothing from the first one on is matched."""
    image = {"type": "image_url", "image_url": {"url": "http://x"}}
    prompt = render(PlainRenderer(), user("Q"), assistant("A"), user([{"type": "text", "text": "before"}, image]))
    assert prompt.data[: prompt.matchable].endswith(b"before\x1e")
    assert prompt.history < prompt.matchable < len(prompt.data)


@UNHURRIED
@given(st.lists(st.text(max_size=8), min_size=2, max_size=2, unique=True), st.sampled_from(["user", "system"]))
def test_plain_prompts_differ_where_requests_differ(texts: list[str], role: str) -> None:
    """Other words, roles or tools give other bytes."""
    one, other = (render(PlainRenderer(), {"role": role, "content": text}) for text in texts)
    assert one.data != other.data
    assert one.data != render(PlainRenderer(), {"role": "assistant", "content": texts[0]}).data
    assert one.data != render(PlainRenderer(), {"role": role, "content": texts[0]}, tools=TOOLS).data
