"""A chat request as vLLM sees it: messages and tools normalised, then rendered by the model's template.

Written for the simulated engine and independent of `extproc.prompts` on purpose: where both agree on a prompt, two
readings of vLLM's rules agree. Checked against what vLLM 0.32 itself tokenised (tests/loadgen/engine/test_prompts.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from loadgen.engine.media import KINDS, PLACEHOLDER, Image, image
from loadgen.json_types import Json

# Content parts that are text, and the key that holds it.
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}


class ChatError(ValueError):
    """The request cannot be rendered: vLLM answers 400. `param` names the field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ChatTemplate:
    """The chat template of a model directory, in the environment in which transformers runs it."""

    def __init__(self, model_dir: Path) -> None:
        """Load and compile it.

        Raises:
            OSError: there is no file that could hold one.
            ValueError: there is no template, or none that compiles.
        """
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        file = model_dir / "chat_template.jinja"
        if file.exists():
            source = file.read_text("utf-8")
        else:
            source = json.loads((model_dir / "tokenizer_config.json").read_text("utf-8")).get("chat_template")
        if not isinstance(source, str):
            raise ValueError(f"{model_dir}: no chat_template.jinja, and no chat_template in tokenizer_config.json")
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ValueError(f"{model_dir}: the chat template does not compile: {error}") from error
        self._wants_parts = self._reads_parts()

    def render(self, body: Mapping[str, Json]) -> str:
        """The prompt of a chat completion request.

        Raises:
            ChatError: a message or a tool has the wrong shape, or the template refused.
        """
        messages = [_message(raw, parts=self._wants_parts) for raw in _objects(body, "messages")]
        if not messages:
            raise ChatError("at least one message is needed", "messages")
        tools = None if body.get("tools") is None else [_tool(raw) for raw in _objects(body, "tools")]
        if tools == []:
            raise ChatError("an empty list of tools: leave the field out instead", "tools")
        continues = bool(body.get("continue_final_message"))
        generates = bool(body.get("add_generation_prompt", True))
        if continues and generates:
            raise ChatError("continue_final_message needs add_generation_prompt false", "continue_final_message")
        options = body.get("chat_template_kwargs") or {}
        if not isinstance(options, dict):
            raise ChatError("an object is expected", "chat_template_kwargs")
        given = {"messages": messages, "tools": tools, "add_generation_prompt": generates}
        try:
            prompt = self._template.render(options | given)
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
            raise ChatError(f"the chat template failed: {error}", "messages") from error
        return _cut_after(prompt, _text(_parts(body["messages"][-1].get("content")))) if continues else prompt

    def _reads_parts(self) -> bool:
        """Whether the template goes through the parts of a content itself, as those of models that see images do."""
        word = "probe"
        try:
            shown = self._template.render(
                messages=[{"role": "user", "content": [{"type": "text", "text": word}]}], add_generation_prompt=True
            )
        except (TemplateError, TypeError, ValueError, LookupError):
            return False
        return word in shown and "'text'" not in shown and '"text"' not in shown


def _objects(body: Mapping[str, Json], field: str) -> list[dict[str, Json]]:
    value = body.get(field)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ChatError("a list of objects is expected", field)
    return value


def images(body: Mapping[str, Json]) -> list[Image]:
    """The images of a chat, in the order of their placeholders.

    Raises:
        ChatError: a message or a part has the wrong shape.
    """
    return [
        found
        for message in _objects(body, "messages")
        for part in _parts(message.get("content"))
        if (found := _image(part)) is not None
    ]


def _message(raw: Mapping[str, Json], *, parts: bool) -> dict[str, Json]:
    """A message with its content as one string, or as parts, and its tool calls' arguments as objects."""
    role = raw.get("role")
    if not isinstance(role, str):
        raise ChatError("every message needs a role", "messages")
    message: dict[str, Json] = {
        "role": "system" if role == "developer" else role,
        "content": _shown(_parts(raw.get("content"))) if parts else _text(_parts(raw.get("content"))),
    }
    message |= {key: raw[key] for key in ("name", "tool_call_id", "reasoning", "reasoning_content") if key in raw}
    if role == "assistant" and raw.get("tool_calls"):
        message["tool_calls"] = [_tool_call(call) for call in _objects(raw, "tool_calls")]
    return message


def _parts(content: Json) -> list[dict[str, Json]]:
    """The parts of a content; a string is one part of text."""
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise ChatError("content must be a string or a list of parts", "messages")
    return content


def _text(parts: list[dict[str, Json]]) -> str:
    """What a template that takes strings gets: placeholders of the images, then texts, joined by newlines; empty texts
    are dropped, nothing at all is an empty string."""
    texts = [text for part in parts if (text := _text_of(part))]
    return "\n".join([PLACEHOLDER for part in parts if part.get("type") in KINDS] + texts)


def _shown(parts: list[dict[str, Json]]) -> list[dict[str, Json]]:
    """What a template that takes parts gets: each with its type, in place."""
    return [{"type": "image"} if (text := _text_of(part)) is None else {"type": "text", "text": text} for part in parts]


def _text_of(part: Mapping[str, Json]) -> str | None:
    """The text of a part; None of an image."""
    kind = part.get("type")
    if isinstance(kind, str) and kind in KINDS:
        return None
    text = part.get(TEXT_PARTS[kind]) if isinstance(kind, str) and kind in TEXT_PARTS else None
    if not isinstance(text, str):
        raise ChatError("only parts of text and images are understood", "messages")
    return text


def _image(part: Mapping[str, Json]) -> Image | None:
    try:
        return image(part)
    except ValueError as error:
        raise ChatError(str(error), "messages") from error


def _tool_call(raw: Mapping[str, Json]) -> dict[str, Json]:
    function = raw.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ChatError("a tool call needs a function with a name", "messages")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = {}
    return {**raw, "function": {**function, "arguments": arguments if isinstance(arguments, dict) else {}}}


def _tool(raw: Mapping[str, Json]) -> dict[str, Json]:
    """A tool as vLLM's classes write it: known keys only, in their order, null where they are missing."""
    function = raw.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ChatError("a tool needs a function with a name", "tools")
    known: dict[str, Json] = {key: function.get(key) for key in ("name", "description", "parameters")}
    if function.get("strict") is not None:
        known["strict"] = function["strict"]
    return {"type": raw.get("type", "function"), "function": known}


def _cut_after(prompt: str, content: str) -> str:
    """The prompt up to the end of the final message, which the template may have stripped."""
    start = prompt.rfind(content.strip())
    if start < 0:
        raise ChatError("the chat template does not show the final message as it is", "continue_final_message")
    kept = content.lstrip()
    return prompt[: start + len(kept if prompt.startswith(kept, start) else content.strip())]


def _tojson(
    value: Json,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML; a prompt must not be escaped.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)  # noqa: DTZ005 - templates expect local time, as transformers gives it
