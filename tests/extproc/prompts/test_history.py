"""history.py: the history ends where the reply does, or where the text first depends on what came after it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from extproc.base.errors import RenderError
from extproc.base.model import Prompt
from extproc.prompts.renderer import Renderer
from extproc.requests import apis
from extproc.requests.paths import Api
from tests.support.paths import MODEL, TESTS

# A machine that is busy with other tests must not fail one of these.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

# In the style of Gemma 4: results stand inside the turn that asked for them, then that turn goes on.
INSIDE = """\
{%- for m in messages if m.role != 'tool' -%}
    {{- '<|im_start|>' + m.role + '\\n' -}}
    {%- for call in m.tool_calls or [] -%}<call>{{ call.function.name }}</call>{%- endfor -%}
    {%- if m.tool_calls -%}
        {%- set ns = namespace(over=false) -%}
        {%- for later in messages[messages.index(m) + 1:] -%}
            {%- if later.role != 'tool' -%}{%- set ns.over = true -%}{%- endif -%}
            {%- if not ns.over -%}<result>{{ later.content }}</result>{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{- m.content -}}
    {%- if not m.tool_calls -%}<|im_end|>{{ '\\n' }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and messages[-1].role != 'tool' -%}<|im_start|>assistant{{ '\\n' }}{%- endif -%}"""

# The same, with the results gathered before the text, and nothing written between: no read shows that they are used.
GATHERED = """\
{%- for m in messages if m.role != 'tool' -%}
    {{- '<|im_start|>' + m.role + '\\n' -}}
    {%- for call in m.tool_calls or [] -%}<call>{{ call.function.name }}</call>{%- endfor -%}
    {%- set ns = namespace(over=m.role != 'assistant', results='') -%}
    {%- for later in messages[messages.index(m) + 1:] -%}
        {%- if later.role != 'tool' -%}{%- set ns.over = true -%}{%- endif -%}
        {%- set result = '<result>' + later.content + '</result>' -%}
        {%- if not ns.over -%}{%- set ns.results = ns.results + result -%}{%- endif -%}
    {%- endfor -%}
    {{- ns.results + m.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant{{ '\\n' }}{%- endif -%}"""

STYLES = {
    "model": (MODEL / "chat_template.jinja").read_text("utf-8"),
    **{path.stem: path.read_text("utf-8") for path in sorted((TESTS / "templates").glob("*.jinja"))},
    "inside": INSIDE,
    "gathered": GATHERED,
}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]

Message = dict[str, Any]


@cache
def renderer(style: str) -> Renderer:
    """The fixtures' model with another template."""
    with TemporaryDirectory() as directory:
        path = Path(directory)
        shutil.copytree(MODEL, path, dirs_exist_ok=True)
        config = json.loads((path / "tokenizer_config.json").read_text("utf-8"))
        del config["chat_template"]
        config |= {"bos_token": "<|endoftext|>", "image_token": "<|im_start|>"}
        (path / "tokenizer_config.json").write_text(json.dumps(config))
        (path / "chat_template.jinja").write_text(STYLES[style], "utf-8")
        return Renderer.load(path)


def render(style: str, messages: Sequence[Message], tools: Sequence[Message] | None = None) -> Prompt:
    body = {"messages": messages, **({"tools": tools} if tools else {})}
    return renderer(style).render(apis.parse(Api.CHAT, json.dumps(body).encode()))


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def reply(text: str, calls: int = 0, thought: str = "") -> Message:
    message: Message = {"role": "assistant", "content": text}
    if calls:
        functions = [{"name": "f", "arguments": f'{{"n": {n}}}'} for n in range(calls)]
        message["tool_calls"] = [
            {"id": f"call{n:05}", "type": "function", "function": function} for n, function in enumerate(functions)
        ]
    return message | ({"reasoning_content": thought} if thought else {})


def results(*texts: str) -> list[Message]:
    return [{"role": "tool", "content": text, "tool_call_id": f"call{n:05}"} for n, text in enumerate(texts)]


def depends_from(style: str, messages: Sequence[Message], tools: Sequence[Message] | None = None) -> int:
    """Where the prompt first depends on what comes after the last reply: the oracle, by another rendering."""
    last = max(i for i, message in enumerate(messages) if message["role"] == "assistant")
    changed = [
        message if i <= last else {**message, "content": "\x1a" + message["content"]}
        for i, message in enumerate(messages)
    ]
    one, other = render(style, messages, tools).data, render(style, changed, tools).data
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@pytest.mark.parametrize("size", [100, 3_000, 20_000])
@pytest.mark.parametrize("style", ["inside", "gathered"])
def test_a_result_inside_the_turn_that_asked_for_it_is_no_history(style: str, size: int) -> None:
    """No engine has computed it, however long it is: a session whose cache is whole must not look evicted."""
    asked = [user("Fix the test. " * 10), reply("", calls=1)]
    prompt = render(style, [*asked, *results("x" * size)])
    assert prompt.history == prompt.data.index(b"<result>") + len(b"<result>")
    answered = [*asked, *results("x" * size), reply("done"), user("next")]
    end = render(style, answered).data.index(b"done<|im_end|>\n") + len(b"done<|im_end|>\n")
    assert end <= render(style, answered).history < end + 30


@pytest.mark.parametrize("style", ["inside", "gathered"])
def test_of_several_results_none_is_history(style: str) -> None:
    """Parallel calls are answered by several messages, and a question may follow them."""
    for more in ([], [user("and?")]):
        prompt = render(style, [user("go"), reply("so", calls=3), *results("R1", "R2", "R3"), *more])
        assert prompt.history == prompt.data.index(b"R1")


def flat(parts: Sequence[Sequence[Message]]) -> list[Message]:
    return [message for part in parts for message in part]


TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=30)
STEP = st.builds(
    lambda text, thought, answers: [reply(text, len(answers), thought), *results(*answers)],
    TEXT,
    st.sampled_from(["", "hm"]),
    st.lists(TEXT, min_size=1, max_size=3),
)
ROUND = st.builds(
    lambda question, steps, answer: [user(question), *flat(steps), *answer],
    TEXT,
    st.lists(STEP, max_size=3),
    TEXT.map(lambda text: [reply(text)]),
)
LAST = st.builds(lambda question, steps: [user(question), *flat(steps)], TEXT, st.lists(STEP, max_size=3))
SESSION = st.builds(lambda rounds, last: [*flat(rounds), *last], st.lists(ROUND, max_size=2), LAST).filter(
    lambda messages: any(message["role"] == "assistant" for message in messages)
)


@UNHURRIED
@given(st.sampled_from(sorted(STYLES)), SESSION, st.sampled_from([None, TOOLS]))
def test_nothing_of_the_history_depends_on_a_later_message(
    style: str, messages: list[Message], tools: list[Message] | None
) -> None:
    """In every style, whatever the session: another rendering with all later messages changed is the same so far."""
    numbered = [{**message, "content": f"{n}: {message['content']}"} for n, message in enumerate(messages)]
    try:
        prompt = render(style, numbered, tools)
    except RenderError:  # some styles take one call at a time
        reject()
    assert 0 < prompt.history <= depends_from(style, numbered, tools)
