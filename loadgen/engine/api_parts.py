"""What the readings of other APIs share: what one is, and small readings of bodies and completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loadgen.engine.completion import Completion
from loadgen.engine.errors import invalid
from loadgen.json_types import Json

Body = Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Api:
    """One path: how its requests become chats, and its answers' ids, bodies and events."""

    prefix: str  # of an answer's id
    chat: Callable[[Body], dict[str, Json]]
    answer: Callable[[Completion], dict[str, Json]]
    first: Callable[[Completion], list[dict[str, Json]]]  # events before the first token
    delta: Callable[[Completion, str], dict[str, Json]]
    last: Callable[[Completion], list[dict[str, Json]]]


def text_of(completion: Completion) -> str:
    """The whole reply as text."""
    return "".join(completion.reply.pieces)


def listed(body: Body, field: str) -> list[Any]:
    """A field that must be a list. Raises Refused, 400, where it is none."""
    value = body.get(field)
    if not isinstance(value, list):
        raise invalid("a list is expected", field)
    return value
