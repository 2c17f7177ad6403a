"""Completions, Anthropic's messages and OpenAI's responses: recorded prompts, odd shapes, turns and history."""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from extproc.base.errors import RenderError, UnreadableBody
from extproc.base.model import Prompt, Request
from extproc.prompts.renderer import PlainRenderer, Renderer
from extproc.prompts.reply_marks import Marks
from extproc.prompts.tokenizer.vocabulary import Vocabulary
from extproc.requests import anthropic, apis, responses
from extproc.requests.responses import HEAD_BYTES, IdReader
from tests.support.paths import TESTS

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
MODEL = TESTS / "fixtures" / "model"
RECORDINGS = sorted((TESTS / "fixtures").glob("*/*.jsonl.gz"))
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@cache
def renderer(template: str | None = None) -> Renderer:
    """The fixtures' model, with its own template or one of tests/templates."""
    return Renderer.load(MODEL) if template is None else with_template((TESTS / "templates" / template).read_text())


RECORDED = datetime(2026, 11, 30, 12, 0)  # noqa: DTZ001 -- the day of vllm-0.32.0-apis.jsonl.gz, which templates write


def with_template(source: str, *, adds_bos: bool = False) -> Renderer:
    """The fixtures' model with another template, and a tokenizer that begins each text with `<|endoftext|>` or not."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "model"
        shutil.copytree(MODEL, directory)
        (directory / "chat_template.jinja").write_text(source, encoding="utf-8")
        config = json.loads((directory / "tokenizer_config.json").read_text())
        config |= {"bos_token": "<|endoftext|>", "image_token": "<|im_start|>"}
        (directory / "tokenizer_config.json").write_text(json.dumps(config))
        if adds_bos:
            tokenizer = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
            bos = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
            tokenizer["post_processor"] = {
                "type": "TemplateProcessing",
                "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {
                    "<|endoftext|>": {"id": "<|endoftext|>", "ids": [4087], "tokens": ["<|endoftext|>"]}
                },
            }
            (directory / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
        return Renderer.load(directory, clock=lambda: RECORDED)


def parse(path: str, **body: Any) -> Request:
    return apis.parse(path, json.dumps({"model": "tiny", **body}).encode())


def render(path: str, *, by: Renderer | None = None, **body: Any) -> Prompt:
    return (by or renderer()).render(parse(path, **body))


def chat(*messages: dict[str, Any], by: Renderer | None = None, **more: Any) -> bytes:
    """The same as a chat, for comparison."""
    return render(CHAT, by=by, messages=messages, **more).data


def says(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


# --- the engine's own prompts


def recorded(*paths: str) -> Iterator[Any]:
    for recording in RECORDINGS:
        with gzip.open(recording, "rt", encoding="utf-8") as file:
            for line in map(json.loads, file):
                if line["kind"] == "request" and line.get("path") in paths:
                    yield line


@pytest.mark.parametrize(("path", "count"), [(COMPLETIONS, 90), (MESSAGES, 4), (RESPONSES, 6)])
def test_recorded_prompts_render_to_the_engines_bytes(path: str, count: int) -> None:
    """Requests that a real vLLM tokenised render to the bytes of its token ids (of several prompts: the longest)."""
    vocabulary, seen = Vocabulary.load(MODEL), 0
    for line in recorded(path):
        ids = line.get("prompt_token_ids")
        if not ids:
            continue
        longest = max(ids, key=len) if isinstance(ids[0], list) else ids
        prompt = renderer().render(apis.parse(path, json.dumps(line["body"]).encode()))
        assert prompt.data == vocabulary.decode(longest), line.get("note")
        assert 0 <= prompt.history <= prompt.matchable == len(prompt.data)
        seen += 1
    assert seen >= count


@pytest.mark.parametrize("style", ["qwen3", "llama3-bos"])
def test_odd_requests_render_as_vllm_renders_them(style: str) -> None:
    """130 random requests of all APIs, recorded from vLLM 0.32's own renderer, with thinking, late system messages,
    changed tools, namespaces, partial replies, and a tokenizer that adds a BOS: bytes agree."""
    name, _, adds_bos = style.partition("-")
    by = with_template((TESTS / "templates" / f"{name}.jinja").read_text(), adds_bos=bool(adds_bos))
    vocabulary = Vocabulary.load(MODEL)
    with gzip.open(TESTS / "templates" / "vllm-0.32.0-apis.jsonl.gz", "rt", encoding="utf-8") as file:
        lines = [line for line in map(json.loads, file) if line["template"] == style]
    assert len(lines) == 130
    for line in lines:
        prompt = by.render(apis.parse(line["path"], json.dumps(line["body"]).encode()))
        assert prompt.data == vocabulary.decode(line["token_ids"]), line["body"]


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
def test_turns_and_history_of_recorded_sessions(path: str) -> None:
    """A session's turn is its number of replies, and its history ends behind the last one."""
    marks = Marks(b"<|im_start|>assistant", b"", b"<|im_end|>\n")
    for line in recorded(path):
        request = apis.parse(path, json.dumps(line["body"]).encode())
        prompt = renderer().render(request)
        assert (request.turn, prompt.history) == marks.find(prompt.data)


def test_counted_tokens_are_those_of_the_prompt() -> None:
    """/v1/messages/count_tokens renders as /v1/messages does: the engine's own count agrees. It caches nothing."""
    (line,) = recorded(COUNT)
    request = apis.parse(COUNT, json.dumps(line["body"]).encode())
    text = renderer().render(request).data.decode()
    ids = Tokenizer.from_file(str(MODEL / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    assert len(ids) == line["response_body"]["input_tokens"]
    assert not request.prefills


# --- completions


def test_ids_are_detokenised() -> None:
    """A text and its ids are the same prompt; special tokens come only where text is tokenised."""
    text = "def f(x):\n    return x  # é\U0001f600\n" * 20
    ids = Tokenizer.from_file(str(MODEL / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    assert render(COMPLETIONS, prompt=text).data == render(COMPLETIONS, prompt=ids).data == text.encode()
    assert render(COMPLETIONS, prompt=["a", text, "b" * 9]).data == text.encode()
    assert render(COMPLETIONS, prompt=[[1], ids]).data == text.encode()
    assert parse(COMPLETIONS, prompt="a").add_special_tokens
    assert not parse(COMPLETIONS, prompt="a", add_special_tokens=False).add_special_tokens


@pytest.mark.parametrize(
    "prompt", [None, "", [], 5, {}, True, [None], [""], [[]], ["a", 5], [[1], "a"], [[1], 5], [{}], [1.5]], ids=repr
)
def test_what_is_no_prompt_is_unreadable(prompt: Any) -> None:
    """Neither text nor ids, nothing at all, or a mixture: the engine judges it."""
    with pytest.raises(UnreadableBody):
        parse(COMPLETIONS, prompt=prompt)


@pytest.mark.parametrize("ids", [[10**6], [-1], [1, "a"], [1, None], [1, [2]], [10**30]], ids=repr)
def test_ids_of_no_token_cannot_be_rendered(ids: list[Any]) -> None:
    """An id that the vocabulary lacks is an error of rendering, with and without a model."""
    with pytest.raises(RenderError):
        render(COMPLETIONS, prompt=ids)
    if ids not in ([10**6], [-1]):  # without a vocabulary these are as good as any
        with pytest.raises(RenderError):
            PlainRenderer().render(parse(COMPLETIONS, prompt=ids))


@pytest.mark.parametrize("style", ["qwen3", "llama3", "mistral", "deepseek", "parts", "collected"])
@pytest.mark.parametrize("replies", [0, 1, 3])
@pytest.mark.parametrize("generates", [True, False])
def test_replies_are_found_in_text(style: str, replies: int, generates: bool) -> None:
    """A chat that a framework rendered itself has the turn and the history that it has as messages."""
    by = renderer(f"{style}.jinja")
    messages = [message for i in range(replies) for message in (says("user", f"Q{i}"), says("assistant", f"A{i} é"))]
    request = parse(CHAT, messages=[*messages, says("user", "Q")], add_generation_prompt=generates)
    prompt = by.render(request)
    found = by.render(parse(COMPLETIONS, prompt=prompt.data.decode(), add_special_tokens=False))
    assert found.data == prompt.data
    assert found.replies == replies
    if replies:
        reply = prompt.data.rindex(b"A%d" % (replies - 1))
        assert reply < found.history <= prompt.data.rindex(b"Q")
    else:
        assert found.history == 0


def test_an_open_reply_goes_on_to_the_end() -> None:
    """A text that stops within a reply, for the model to go on, is all history."""
    opened = chat(says("user", "Q")).decode() + "I think that"
    prompt = render(COMPLETIONS, prompt=opened)
    assert (prompt.replies, prompt.history) == (1, len(prompt.data))


# --- Anthropic's messages


def test_blocks_become_what_the_engine_makes_of_them() -> None:
    """Texts, thinking, calls, results and images of an agent's session are those of the same chat."""
    call = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}
    results = [{"type": "text", "text": "R1"}, {"type": "image", "source": {}}, {"type": "text", "text": "R2"}]
    request = parse(
        MESSAGES,
        system=[
            {"type": "text", "text": "S1"},
            {"type": "text", "text": "x-anthropic-billing-header: 1"},
            {"type": "text", "text": "S2", "cache_control": {"type": "ephemeral"}},
        ],
        messages=[
            says("user", [{"type": "text", "text": "Q1"}, {"type": "image", "source": {"type": "url", "url": "u"}}]),
            says("assistant", [{"type": "thinking", "thinking": "T"}, {"type": "text", "text": "A"}, call]),
            says("user", [{"type": "tool_result", "tool_use_id": "t1", "content": results}]),
            says("assistant", [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "B"}]),
            says("user", [{"type": "tool_result", "tool_use_id": "t2"}, {"type": "text", "text": "Q2"}]),
        ],
        tools=[{"name": "f", "input_schema": {"properties": {}}, "cache_control": {}}],
        tool_choice={"type": "any"},
    )
    function = {"name": "f", "description": None, "parameters": {"properties": {}, "type": "object"}}
    arguments = {"id": "t1", "function": {"arguments": {"a": 1}, "name": "f"}, "type": "function"}
    assert request.tools == [{"type": "function", "function": function}]
    assert request.turn == 2
    assert request.messages == [
        says("system", "S1S2"),
        says("user", [{"type": "text", "text": "Q1"}, {"type": "image"}]),
        {**says("assistant", "A"), "tool_calls": [arguments], "reasoning": "T", "reasoning_content": "T"},
        {**says("tool", "R1\nR2"), "tool_call_id": "t1"},
        says("user", [{"type": "image"}]),
        says("assistant", "B"),
        {**says("tool", ""), "tool_call_id": "t2"},
        says("user", "Q2"),
    ]


def test_late_system_messages_merge_where_the_template_wants_it() -> None:
    """Reminders in the middle stay where they are, or join the first system message where a template refuses them."""
    body = {"system": "S", "messages": [says("user", "Q"), says("system", "R"), says("user", "P")]}
    late = [says("system", "S"), says("user", "Q"), says("system", "R"), says("user", "P")]
    assert render(MESSAGES, **body).data == chat(*late)
    strict = with_template(
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}"
        "<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    assert render(MESSAGES, by=strict, **body).data == b"<system>SR<user>Q<user>P"
    with pytest.raises(RenderError):
        chat(*late, by=strict)


@pytest.mark.parametrize(
    ("template", "effort"),
    [
        ("{{ enable_thinking is defined and enable_thinking }}", b"False"),
        ("{{ reasoning_effort }}", b"none"),
        ("{{ 'max' if reasoning_effort not in ['low', 'high'] else reasoning_effort }}", b"low"),
        ("{% if reasoning_effort == 'none' %}{{ raise_exception('x') }}{% endif %}{{ reasoning_effort }}", b"low"),
    ],
)
def test_thinking_is_disabled_in_the_templates_own_way(template: str, effort: bytes) -> None:
    """Where a template knows no way to stop thinking, vLLM asks it to think little."""
    by = with_template(template)
    assert render(MESSAGES, by=by, messages=[says("user", "Q")], thinking={"type": "disabled"}).data == effort


def test_efforts_reach_the_template() -> None:
    """`output_config.effort` is the chat's reasoning_effort; enabled thinking leaves it alone."""
    body = {"messages": [says("user", "Q")], "output_config": {"effort": "high"}, "thinking": {"type": "enabled"}}
    assert parse(MESSAGES, **body).template_kwargs == {"reasoning_effort": "high", "enable_thinking": True}


def test_tools_change_on_the_way() -> None:
    """System messages add and remove tools; the template sees those in effect at the end."""

    def change(kind: str, **tool: Any) -> dict[str, Any]:
        return says("system", [{"type": f"tool_{kind}", "tool": tool}])

    tools = [{"name": name, "input_schema": {"type": "object"}} for name in "ab"]
    added = change("addition", type="tool_definition", definition={"name": "c", "input_schema": {"type": "object"}})
    removed = change("removal", type="tool_reference", name="a")
    request = parse(MESSAGES, tools=tools, messages=[says("user", "Q"), added, removed])
    assert [tool["function"]["name"] for tool in request.tools or ()] == ["b", "c"]
    with pytest.raises(UnreadableBody):
        parse(MESSAGES, tools=tools, messages=[change("removal", type="tool_reference", name="z")])


# --- responses


def test_items_of_one_reply_are_one_message() -> None:
    """Reasoning, text and calls that follow each other join; results and users part them."""
    request = parse(
        RESPONSES,
        instructions="S",
        input=[
            says("user", [{"type": "input_text", "text": "Q"}]),
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "T"}]},
            {"type": "message", **says("assistant", [{"type": "output_text", "text": "A"}, {"text": "lost"}])},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'},
            {"type": "function_call", "call_id": "c2", "name": "g", "namespace": "n", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "R"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "R2"}]},
            says("assistant", "B"),
            says("assistant", "C"),
            says("developer", "D"),
        ],
        tools=[
            {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True},
            {"type": "web_search"},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}, {"type": "custom"}]},
            {"type": "custom", "name": "shell", "description": "d"},
        ],
    )
    assert [message["role"] for message in request.messages] == (
        ["system", "user", "assistant", "tool", "tool", "assistant", "assistant", "developer"]
    )
    reply = request.messages[2]
    assert (reply["content"], reply["reasoning"]) == ("A", "T")
    assert [call["function"]["name"] for call in reply["tool_calls"]] == ["f", "n__g"]
    assert [tool["function"]["name"] for tool in request.tools or ()] == ["f", "n__g", "shell"]
    assert (request.turn, request.add_special_tokens, request.stored) == (3, True, True)


def test_a_reply_of_many_pieces_is_put_together_once() -> None:
    """Neither calls nor thoughts are copied for each that follows: a body can hold tens of thousands of them."""

    class Thought(str):
        def __radd__(self, before: str) -> str:
            raise AssertionError("copied")

    calls: list[Any] = [{"id": "c0", "function": {"name": "f"}}]
    more = [{"type": "function_call", "name": "f", "call_id": f"c{i}", "arguments": "{}"} for i in range(1, 9)]
    [message] = responses.chat({"input": [{"role": "assistant", "tool_calls": calls}, *more]})["messages"]
    assert message["tool_calls"] is calls
    assert [call["id"] for call in calls] == [f"c{i}" for i in range(9)]
    thoughts = [{"type": "thinking", "thinking": Thought(text)} for text in "abc"]
    assert anthropic.chat({"messages": [says("assistant", thoughts)]})["messages"][0]["reasoning"] == "abc"


def test_a_long_name_is_not_repeated_for_every_function() -> None:
    """A namespace's name stands before that of each of its functions: gigabytes, where both are many."""
    inner = [{"type": "function", "name": f"f{i}"} for i in range(3)]
    with pytest.raises(UnreadableBody):
        responses.chat({"input": "Q", "tools": [{"type": "namespace", "name": "n" * 1000, "tools": inner}]})
    [first, *_] = responses.chat({"input": "Q", "tools": [{"type": "namespace", "name": "n", "tools": inner}]})["tools"]
    assert first["function"]["name"] == "n__f0"


def test_a_tool_is_copied_only_where_it_changes() -> None:
    """A large tool that is named again and again stays the object that it is."""
    tool: dict[str, Any] = {"name": "f", "input_schema": {}, "defer_loading": True}
    change = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}}
    tools = {"f": tool}
    anthropic._change(change, tools, set())
    once = tools["f"]
    assert once == {**tool, "defer_loading": None}
    anthropic._change(change, tools, set())
    assert tools["f"] is once


def test_a_reply_that_is_not_over_is_continued() -> None:
    """vLLM goes on with a last item that says that it is incomplete."""
    part = {"type": "message", "status": "incomplete", **says("assistant", [{"type": "output_text", "text": "I th"}])}
    request = parse(RESPONSES, input=[says("user", "Q"), part])
    assert (request.continue_final_message, request.add_generation_prompt) == (True, False)
    assert renderer().render(request).data.endswith(b"<|im_start|>assistant\nI th")
    assert not parse(RESPONSES, input=[part, says("user", "Q")]).continue_final_message


def test_what_refers_to_a_stored_response_says_so() -> None:
    """The id of the earlier response, and whether this one may be kept."""
    request = parse(RESPONSES, input="go on", previous_response_id="resp_1", store=False)
    assert (request.previous_response, request.stored) == ("resp_1", False)


def test_ids_of_recorded_responses_are_found() -> None:
    """vLLM's own answers, whole, give their id in the first bytes."""
    seen = 0
    for line in recorded(RESPONSES):
        if line.get("response_id"):
            answer = json.dumps({"id": line["response_id"], "output": line["response_output"]}).encode()
            assert IdReader().feed(answer[:200]) == line["response_id"]
            seen += 1
    assert seen >= 4


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_ids_are_found_however_the_answer_is_cut(size: int) -> None:
    """Chunks of any size, streamed and whole."""
    event = {"type": "response.created", "response": {"id": "resp_abc-1", "object": "response"}, "sequence_number": 0}
    streamed = f"event: response.created\ndata: {json.dumps(event)}\n\n".encode()
    for answer in (streamed, json.dumps(event["response"], separators=(",", ":")).encode()):
        reader = IdReader()
        found = [reader.feed(answer[i : i + size]) for i in range(0, len(answer), size)]
        assert next(filter(None, found)) == "resp_abc-1"


def test_reading_an_id_is_bounded() -> None:
    """An answer without an id is given up after its first bytes."""
    reader = IdReader()
    for _ in range(100):
        assert reader.feed(b"x" * 1000) is None
    assert reader.hopeless
    assert len(reader._head) == HEAD_BYTES


# --- anything at all

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=5,
)
NAMES = ["content", "text", "thinking", "source", "id", "name", "input", "tool_use_id", "output", "arguments"]
NAMES += ["call_id", "summary", "status", "tool", "definition", "input_schema", "tools", "namespace", "role"]
KINDS = ["text", "image", "thinking", "tool_use", "tool_result", "tool_reference", "tool_addition", "tool_removal"]
KINDS += ["function_call", "function_call_output", "custom_tool_call", "reasoning", "message", "function", "custom"]
KINDS += ["namespace", "tool_definition", "output_text", "input_text"]
BLOCK = st.recursive(
    JSON,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.fixed_dictionaries({"type": st.sampled_from(KINDS)}, optional=dict.fromkeys(NAMES, inner | st.text()))
    ),
    max_leaves=8,
)
ROLES = st.sampled_from(["user", "assistant", "system", "tool", "developer"])
ITEM = BLOCK | st.fixed_dictionaries({"role": ROLES, "content": st.lists(BLOCK, max_size=3) | BLOCK})
FIELDS = ["system", "tools", "thinking", "output_config", "reasoning", "instructions", "prompt", "store", "model"]
BODY = st.fixed_dictionaries(
    {"messages": st.lists(ITEM, max_size=3), "input": st.lists(ITEM, max_size=3) | BLOCK},
    optional=dict.fromkeys(FIELDS, BLOCK | st.lists(BLOCK, max_size=2)),
)


@UNHURRIED
@given(st.sampled_from([COMPLETIONS, MESSAGES, COUNT, RESPONSES]), JSON | BODY)
def test_any_json_is_read_or_refused(path: str, body: Any) -> None:
    """No body of any API raises anything but UnreadableBody and RenderError."""
    try:
        request = apis.parse(path, json.dumps(body).encode())
    except UnreadableBody:
        return
    for one in (renderer(), PlainRenderer()):
        try:
            prompt = one.render(request)
        except RenderError:
            continue
        assert 0 <= prompt.history <= len(prompt.data)
        assert 0 <= prompt.matchable <= len(prompt.data)


@UNHURRIED
@given(st.binary(max_size=60) | st.text(alphabet="<|im_startend>assistant\n", max_size=200).map(str.encode))
def test_any_text_has_its_replies_within_itself(prompt: bytes) -> None:
    """Looking for replies never leaves the prompt, and history means that there are some."""
    for marks in (Marks(b"<|im_start|>assistant", b"<think>", b"<|im_end|>"), Marks(b"ass", b"", b""), Marks()):
        replies, history = marks.find(prompt)
        assert 0 <= history <= len(prompt)
        assert (history > 0) == (replies > 0)
