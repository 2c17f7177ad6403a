"""One chat completion under way, and how vLLM words it: a whole answer, or the chunks of a stream.

Knows neither HTTP nor how a prompt or a reply comes about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadgen.engine.clock import LiveRequest
from loadgen.engine.reply import Reply
from loadgen.json_types import Json


@dataclass(frozen=True, slots=True)
class Completion:
    """One chat completion under way. `sampled` below is the number of tokens of the reply so far."""

    id: str
    created: int  # seconds since 1970
    model: str
    request: LiveRequest
    reply: Reply
    stream: bool
    include_usage: bool
    cacheable: int  # tokens in whole blocks of the prompt

    def message(self) -> dict[str, Json]:
        """The answer to a request that does not stream."""
        call = self.reply.call
        message: dict[str, Json] = {"role": "assistant", "content": None if call else "".join(self.reply.pieces)}
        if call:
            function = {"name": call.name, "arguments": call.arguments}
            message["tool_calls"] = [{"id": call.id, "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self.reply.finish}
        return self._envelope("chat.completion", [choice]) | {"usage": self._usage()}

    def opening(self) -> dict[str, Json]:
        """The first chunk of a stream, which comes with the first token."""
        return self._chunk({"role": "assistant", "content": ""})

    def delta(self, before: int, sampled: int) -> dict[str, Json] | None:
        """The chunk that brings a stream from `before` tokens to `sampled`; None where a client sees no difference."""
        text = "".join(self.reply.pieces[before:sampled])
        if text:
            return self._chunk({"content": text})
        call = self.reply.call
        if call and sampled == len(self.reply.tokens):
            function = {"name": call.name, "arguments": call.arguments}
            return self._chunk({"tool_calls": [{"index": 0, "id": call.id, "type": "function", "function": function}]})
        return None

    def closing(self) -> list[dict[str, Json]]:
        """The last chunks of a stream: why it ends, and the usage where the client asked for it."""
        chunks = [self._chunk({}, self.reply.finish)]
        if self.include_usage:
            chunks.append(self._envelope("chat.completion.chunk", []) | {"usage": self._usage()})
        return chunks

    def _usage(self) -> dict[str, Json]:
        request = self.request
        return {
            "prompt_tokens": request.prompt,
            "total_tokens": request.prompt + request.reply,
            "completion_tokens": request.reply,
            # The engine's own truth about a hit, reported by 0.32 even when it is 0.
            "prompt_tokens_details": {
                "cached_tokens": max(request.hit, request.remote_hit),
                "created_cache_tokens": self.cacheable - request.hit,
            },
        }

    def _chunk(self, delta: Mapping[str, Json], finish: str | None = None) -> dict[str, Json]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return self._envelope("chat.completion.chunk", [choice])

    def _envelope(self, kind: str, choices: list[Json]) -> dict[str, Json]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}
