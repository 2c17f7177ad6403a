"""What a replayed request says: leading messages of its parent's real conversation, and new ones. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from loadgen.json_types import Json
from loadgen.replay.answers import following
from loadgen.workloads.trace import TraceRequest

Messages = Sequence[Mapping[str, Json]]


@dataclass(frozen=True, slots=True)
class Turn:
    """What a request says: it keeps leading messages of its parent's conversation, reply included, and adds some."""

    keep: int
    messages: Messages
    tools: Sequence[Json] = ()  # it offers; with any, the reply ends where the model ends it


class Script(Protocol):
    """The words of a workload. Asked from another thread, once a request, for parents before their children."""

    def ask(self, request: TraceRequest) -> Turn:
        """What a request says."""


def carried_on(before: Messages, ask: Turn) -> list[Mapping[str, Json]]:
    """The messages that a request sends, `before` being its parent's conversation.

    After a reply that called tools, the first new text is what they returned.
    """
    messages, new = list(before[: ask.keep]), list(ask.messages)
    if messages and new and new[0]["role"] == "user":
        messages += following(new.pop(0)["content"], messages[-1])
    return messages + new
