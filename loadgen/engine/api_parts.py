"""What an API is to the engine: how its requests become chats, and how its answers and streams are worded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from loadgen.engine.completion import Completion, Sample
from loadgen.engine.errors import invalid
from loadgen.json_types import Json

Body = Mapping[str, Json]
Event = dict[str, Json]


class Stream(ABC):
    """The events of one answer, in their order."""

    def __init__(self, completion: Completion, asked: Body) -> None:
        self.completion = completion
        self.asked = asked

    def opening(self) -> list[Event]:
        """Before there is a token."""
        return []

    @abstractmethod
    def advance(self, sample: Sample, before: int, sampled: int) -> list[Event]:
        """What brings a sample from `before` tokens to `sampled`; after the last of them, what ends it."""

    def closing(self) -> list[Event]:
        """When every sample has ended."""
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One path."""

    prefix: str  # of an answer's id
    chat: Callable[
        [Body], dict[str, Json]
    ]  # raises KeyError, TypeError, AttributeError for what is none of its requests
    answer: Callable[[Completion, Body], dict[str, Json]]
    stream: Callable[[Completion, Body], Stream]
    named: bool = False  # events have names, by their `type`
    done: bool = False  # a stream ends with [DONE]
    stores: bool = False  # answers may be continued by their id


def listed(body: Body, field: str) -> list[Any]:
    """A field that must be a list. Raises Refused, 400, where it is none."""
    value = body.get(field)
    if not isinstance(value, list):
        raise invalid("a list is expected", field)
    return value


def copied(body: Body, **names: str) -> dict[str, Json]:
    """Those fields of a chat that the body has, under the names that it has them by."""
    return {ours: body[theirs] for ours, theirs in names.items() if theirs in body}
