"""Responses that an engine keeps, so that requests may continue them: in its own memory alone, as vLLM does."""

from __future__ import annotations

from loadgen.engine.api_parts import Body
from loadgen.engine.completion import Completion
from loadgen.engine.errors import Refused
from loadgen.json_types import Json

MOST = 10_000  # the oldest is forgotten


class StoredResponses:
    """By id: the answer, and the conversation up to its end."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[dict[str, Json], list[Json]]] = {}

    def continued(self, body: Body, chat: dict[str, Json]) -> dict[str, Json]:
        """The chat behind the conversation that the body goes on from, if it does.

        Raises:
            Refused: 404, there is no such response.
        """
        previous = body.get("previous_response_id")
        if previous is None:
            return chat
        if previous not in self._kept:
            raise Refused(404, "NotFoundError", f"Response with id '{previous}' not found.", "previous_response_id")
        own = chat["messages"]
        system = [message for message in own if message["role"] == "system"][:1]
        return chat | {"messages": [*system, *self._kept[previous][1], *own[len(system) :]]}

    def keep(self, completion: Completion, chat: dict[str, Json], answer: dict[str, Json]) -> None:
        """Store a finished response. Instructions are not handed on: each request brings its own."""
        reply: dict[str, Json] = {"role": "assistant", "content": completion.sample.text() or None}
        if call := completion.reply.call:
            function = {"name": call.name, "arguments": call.arguments}
            reply["tool_calls"] = [{"id": call.id, "type": "function", "function": function}]
        said = [message for message in chat["messages"] if message["role"] != "system"]
        self._kept[completion.id] = answer, [*said, reply]
        if len(self._kept) > MOST:
            del self._kept[next(iter(self._kept))]

    def find(self, name: str) -> dict[str, Json]:
        """The answer.

        Raises:
            Refused: 404, there is no such response.
        """
        if name not in self._kept:
            raise Refused(404, "NotFoundError", f"Response with id '{name}' not found.", "response_id")
        return self._kept[name][0]
