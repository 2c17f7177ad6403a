"""Answers of an OpenAI endpoint, streamed or whole, as they come in. Knows the format; asks nothing of anybody.

Every method that reads raises `msgspec.DecodeError` for what is not of that format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from loadgen.chat import Json


class Details(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Details | None = None


class Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class Call(msgspec.Struct):
    function: Function
    id: str | None = None
    index: int = 0  # which call a part belongs to


class Message(msgspec.Struct):
    content: str | None = None
    tool_calls: list[Call] | None = None


class Choice(msgspec.Struct):
    delta: Message | None = None  # of a stream
    message: Message | None = None  # of a whole answer


class Answer(msgspec.Struct):
    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


_ANSWERS = msgspec.json.Decoder(Answer)


class Reading:
    """One answer, read piece by piece. `done` once it is whole, `error` what the server said in place of it."""

    def __init__(self) -> None:
        self.done = False
        self.error: str | None = None
        self.begun = False  # a first token has come
        self.pieces = 0  # of text: of a stream, about as many as its tokens
        self.usage = Usage()
        self._text: list[str] = []
        self._calls: dict[int, tuple[list[str], list[str], list[str]]] = {}  # id, name, arguments

    @property
    def cached_tokens(self) -> int | None:
        details = self.usage.prompt_tokens_details
        return details.cached_tokens if details else None

    def line(self, line: bytes) -> None:
        """One line of a stream of server-sent events."""
        if not line.startswith(b"data:"):
            return
        data = line[5:].strip()
        if data == b"[DONE]":
            self.done = True
        else:
            self._read(_ANSWERS.decode(data))

    def whole(self, body: bytes) -> None:
        """An answer that did not stream."""
        self._read(_ANSWERS.decode(body))
        self.done = self.begun

    def message(self) -> dict[str, Json]:
        """The assistant's message, for the history of the next request."""
        message: dict[str, Json] = {"role": "assistant", "content": "".join(self._text) or None}
        if self._calls:
            message["tool_calls"] = [
                {
                    "id": "".join(identity),
                    "type": "function",
                    "function": {"name": "".join(name), "arguments": "".join(arguments)},
                }
                for identity, name, arguments in self._calls.values()
            ]
        return message

    def _read(self, answer: Answer) -> None:
        if answer.error is not None:
            self.error = str(answer.error)[:500]
        self.usage = answer.usage or self.usage
        for choice in answer.choices:
            self.begun = True
            message = choice.delta or choice.message or Message()
            if message.content:
                self._text.append(message.content)
                self.pieces += 1
            for place, call in enumerate(message.tool_calls or ()):
                # Parts of a stream say which call they belong to; calls of a whole answer stand in order.
                parts = self._calls.setdefault(call.index if choice.delta else place, ([], [], []))
                for part, text in zip(parts, (call.id, call.function.name, call.function.arguments), strict=True):
                    part.append(text or "")


def following(text: str, before: Mapping[str, Json]) -> list[dict[str, Json]]:
    """The messages that bring `text` after the message `before`: results of the calls in it, or a user's message."""
    calls = before.get("tool_calls") or []
    if not calls:
        return [{"role": "user", "content": text}]
    return [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]
