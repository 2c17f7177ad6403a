"""Request bodies of the APIs that vLLM speaks: path and bytes -> `Request`.

Owns what is read of each API's body and the fields around the messages; the messages themselves are `chat.py`'s.
Anthropic's messages and OpenAI's responses are made into chats first, as vLLM does (`anthropic.py`, `responses.py`).
Which API a path leads to is `paths.py`'s to know. Refuses to know templates, tokens and routing. One more API is one
more member of `paths.Api`, one more function and one more row of `_READERS`.

Bodies that vLLM 0.32 would refuse are read leniently where older versions did so, and are otherwise `UnreadableBody`:
the engine judges them in both cases.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from extproc.base.errors import UnreadableBody, UnsupportedApi
from extproc.base.model import Request
from extproc.requests import anthropic, chat, limits, responses
from extproc.requests.beginnings import Beginnings
from extproc.requests.bodies import document, utf8
from extproc.requests.paths import Api, api_of

Body = dict[str, Any]

_ENDS_BYTES = 4096
_MODEL = re.compile(rb'"model"\s*:\s*"([\x21\x23-\x5b\x5d-\x7e]{1,256})"')


def parse(path: str, body: bytes, beginnings: Beginnings | None = None) -> Request:
    """Read the body of a request to `path`, with what is remembered of bodies that begin so.

    Raises UnsupportedApi for a path that leads to no API of ours, UnreadableBody for a body that is no request of its
    API, and BodyTooCostly for one that holds too much (`limits.py`); no input raises anything else.
    """
    api = api_of(path)
    if api is None:
        raise UnsupportedApi(f"not an API whose prompt we can render: {path[:100]!r}")
    try:
        given = document(body) if beginnings is None else beginnings.document(body)
        if not isinstance(given, dict):
            raise UnreadableBody("the body is not a JSON object")
        return replace(_READERS[api](given), size=len(body))
    except RecursionError as error:
        raise UnreadableBody("the body is nested too deeply") from error


class _Named(msgspec.Struct):
    model: str | None = None


def model_of(body: bytes) -> str | None:
    """The model that a request of any API asks for; None where it names none, or cannot be read. Much faster than
    `parse`, because all else is skipped."""
    try:
        return msgspec.json.decode(utf8(body), type=_Named).model
    except (UnreadableBody, msgspec.DecodeError, RecursionError):
        return _model_of_odd(body)


def models_named(body: bytes | memoryview) -> Sequence[str]:
    """The models that a body seems to ask for, by its first and last bytes alone: for one that is too long to be read.

    In a text quotation marks are escaped, so this is a key of the body, or of an object within it.
    """
    ends = bytes(body[:_ENDS_BYTES]), bytes(body[-_ENDS_BYTES:])
    return [found.decode() for end in ends for found in _MODEL.findall(end)]


def _model_of_odd(body: bytes) -> str | None:
    try:
        read = document(body)
    except UnreadableBody:
        return None
    model = read.get("model") if isinstance(read, dict) else None
    return model if isinstance(model, str) else None


def _chat_completions(body: Body) -> Request:
    messages = chat.messages(body.get("messages"))
    tools = chat.tools(body.get("tools"))
    kwargs = _template_kwargs(body)
    if "tools" in kwargs:  # chat_template_kwargs win over the request's own tools, and are not re-dumped
        tools = kwargs.pop("tools")
        if not isinstance(tools, list):
            raise UnreadableBody("`chat_template_kwargs.tools` is not a list")
    return Request(
        model=_text(body, "model"),
        turn=sum(message["role"] == "assistant" for message in messages),
        messages=messages,
        tools=tools,
        add_generation_prompt=_flag(body, "add_generation_prompt", default=True),
        continue_final_message=_flag(body, "continue_final_message"),
        template_kwargs=kwargs,
        cache_salt=_text(body, "cache_salt"),
        stream=_flag(body, "stream"),
        add_special_tokens=_flag(body, "add_special_tokens"),
    )


def _completions(body: Body) -> Request:
    return Request(
        model=_text(body, "model"),
        turn=0,
        messages=(),
        prompt=_prompt(body.get("prompt")),
        cache_salt=_text(body, "cache_salt"),
        stream=_flag(body, "stream"),
        add_special_tokens=_flag(body, "add_special_tokens", default=True),
    )


def _messages(body: Body) -> Request:
    return replace(_chat_completions(anthropic.chat(body)), anthropic=True)


def _count_tokens(body: Body) -> Request:
    return replace(_messages(body), prefills=False)


def _responses(body: Body) -> Request:
    return replace(
        _chat_completions(responses.chat(body)),
        stored=_flag(body, "store", default=True),
        previous_response=_text(body, "previous_response_id"),
    )


_READERS: Mapping[Api, Callable[[Body], Request]] = {
    Api.CHAT: _chat_completions,
    Api.COMPLETIONS: _completions,
    Api.MESSAGES: _messages,
    Api.COUNT_TOKENS: _count_tokens,
    Api.RESPONSES: _responses,
}


def _prompt(raw: Any) -> str | Sequence[int]:
    """A text or token ids; of several prompts, which vLLM takes in one request, the longest: it costs the most."""
    if isinstance(raw, list) and raw and not isinstance(raw[0], int):
        limits.bounded(raw, limits.PROMPTS, "prompts")
        kind = type(raw[0])
        if kind not in (str, list) or not all(isinstance(prompt, kind) for prompt in raw):
            raise UnreadableBody("`prompt` holds neither texts nor lists of token ids")
        raw = max(raw, key=len)
    if not isinstance(raw, str | list) or not raw:
        raise UnreadableBody("`prompt` is neither text nor token ids, or is empty")
    return raw if isinstance(raw, str) else limits.bounded(raw, limits.TOKEN_IDS, "token ids")


def _template_kwargs(body: Body) -> Body:
    """What the template is told besides messages and flags; vLLM takes null and "auto" for "not given"."""
    given = body.get("chat_template_kwargs")
    if given is not None and not isinstance(given, dict):
        raise UnreadableBody("`chat_template_kwargs` is not an object")
    kwargs = dict(given or {})
    effort = body.get("reasoning_effort")
    if effort is not None and "enable_thinking" not in kwargs:
        kwargs["enable_thinking"] = effort != "none"
    for name in ("documents", "reasoning_effort"):
        if body.get(name) is not None:
            kwargs[name] = body[name]
    return {name: value for name, value in kwargs.items() if value is not None and value != "auto"}


def _text(body: Body, name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise UnreadableBody(f"`{name}` is not a string")
    return value or None


def _flag(body: Body, name: str, *, default: bool = False) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise UnreadableBody(f"`{name}` is not a boolean")
    return value
