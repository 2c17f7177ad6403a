"""Answers of an OpenAI endpoint, streamed or whole, as they come in. Knows the format, and no connection.

Every method that reads raises `msgspec.DecodeError` for what is not of that format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from loadgen.json_types import Json

LONGEST_PROMPT = 100_000_000  # tokens; what is said to be longer is no count
LONGEST_TEXT = 500  # characters of an error, of a name
# Halves of surrogate pairs, which no UTF-8 has, and what steers a terminal.
_UNFIT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


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


@dataclass(frozen=True, slots=True)
class Tokens:
    """What an answer says of its tokens, as far as it can be. What is not said, or cannot be, is None."""

    prompt: int | None
    cached: int | None
    completion: int | None
    doubtful: bool  # something that was said cannot be


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

    def tokens(self, asked: int) -> Tokens:
        """The counts of `usage` that can be: a reply has at most the tokens `asked` for, and no more than its prompt
        comes out of a cache."""
        usage = self.usage
        details = usage.prompt_tokens_details
        said = usage.prompt_tokens, details.cached_tokens if details else None, usage.completion_tokens
        prompt = _within(1, said[0], LONGEST_PROMPT)
        found = prompt, _within(0, said[1], prompt or -1), _within(0, said[2], asked)
        return Tokens(*found, doubtful=found != said)

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
            self.error = str(answer.error)
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


def plain(text: str) -> str:
    """Text that came from a server, fit to be kept and shown: cut to LONGEST_TEXT, each unfit character replaced."""
    return _UNFIT.sub("\ufffd", text[:LONGEST_TEXT])


def following(text: str, before: Mapping[str, Json]) -> list[dict[str, Json]]:
    """The messages that bring `text` after the message `before`: results of the calls in it, or a user's message."""
    calls = before.get("tool_calls") or []
    if not calls:
        return [{"role": "user", "content": text}]
    return [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]


def _within(least: int, count: int | None, most: int) -> int | None:
    return count if count is not None and least <= count <= most else None
