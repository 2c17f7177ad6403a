"""Which API a request is for, told from its path. The only module that reads paths.

A gateway may rewrite paths on the way to the engine, and Envoy does so after this filter has seen them: the model or
the team is named in front (`/team-a/v1/chat/completions`, `/openai/deployments/NAME/chat/completions?api-version=...`).
So the end of a path says which API it is. No other service has `chat/completions`; one word alone (`messages`) is many
services', and counts only behind what announces an API of this kind (`v1/messages`). What merely contains an API's path
is none: `/v1/chat/completions/render`, `/v1/messages/batches`.

Refuses to know bodies, and what Envoy makes of a path. No path raises anything.
"""

from __future__ import annotations

from enum import StrEnum
from urllib.parse import unquote

MAX_ID = 128  # characters of a response's id; vLLM's own have 37, but clients may bring theirs


class Api(StrEnum):
    """The APIs whose prompts we can render. The value is the path at which vLLM serves it."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    MESSAGES = "/v1/messages"
    COUNT_TOKENS = "/v1/messages/count_tokens"
    RESPONSES = "/v1/responses"


# What announces an API: /v1/..., Azure's /openai/responses?api-version=... and /openai/deployments/NAME/completions.
_HERE = (["v1"], ["openai"])
_NAMED = (["deployments"], ["engines"])

_BARE = {"completions": Api.COMPLETIONS, "messages": Api.MESSAGES, "responses": Api.RESPONSES}

# What may follow the id of a stored response, and what stands in its place without being one.
_OF_RESPONSE = ("cancel", "input_items")
_NO_ID = ("compact", "input_tokens")


def api_of(path: str) -> Api | None:
    """The API that a path leads to, perhaps behind a rewrite; None where it is none of ours."""
    segments = _segments(path)
    if segments[-2:] == ["chat", "completions"]:
        return Api.CHAT
    if segments[-2:] == ["messages", "count_tokens"]:
        return Api.COUNT_TOKENS if _announced(segments[:-2]) else None
    api = _BARE.get(segments[-1]) if segments else None
    return api if _announced(segments[:-1]) else None


def response_in(path: str) -> str | None:
    """The id in the path of a request about a response that exists (to read, cancel or delete it)."""
    segments = _segments(path)
    if segments and segments[-1] in _OF_RESPONSE:
        segments = segments[:-1]
    if segments[-2:-1] != ["responses"] or not _announced(segments[:-2]):
        return None
    name = segments[-1]
    return name if name not in _NO_ID and len(name) <= MAX_ID else None


def _announced(front: list[str]) -> bool:
    return front[-1:] in _HERE or front[-2:-1] in _NAMED


def _segments(path: str) -> list[str]:
    """The names between the slashes, as a server sees them: decoded, without the query."""
    path = path.partition("?")[0].partition("#")[0]
    return [segment for segment in unquote(path).split("/") if segment]
