"""/v1/chat/completions: answers and chunks of a stream as OpenAI's clients read them. Requests are what a chat is."""

from __future__ import annotations

from collections.abc import Mapping

from loadgen.engine.api_parts import Api, Body, Event, Stream
from loadgen.engine.completion import Completion, Sample
from loadgen.engine.reply import ToolCall
from loadgen.json_types import Json


def _answer(completion: Completion, _asked: Body) -> dict[str, Json]:
    choices = [_choice(sample) for sample in completion.samples]
    details = _details(completion) | {"multimodal_tokens": None}
    usage = completion.usage(details) | {"completion_tokens_details": None}
    return _envelope(completion, "chat.completion", choices) | {"usage": usage}


def _choice(sample: Sample) -> dict[str, Json]:
    call = sample.reply.call
    message: dict[str, Json] = {"role": "assistant", "content": None if call else sample.text()}
    if call:
        message["tool_calls"] = [_call(call)]
    return {"index": sample.index, "message": message, "logprobs": None, "finish_reason": sample.reply.finish}


class _Chunks(Stream):
    """The role with a sample's first token, its text as it comes, a call as a whole, the reason of its end."""

    def advance(self, sample: Sample, before: int, sampled: int) -> list[Event]:
        chunks = [] if before else [self._chunk(sample, {"role": "assistant", "content": ""})]
        if text := sample.text(before, sampled):
            chunks.append(self._chunk(sample, {"content": text}))
        if sampled == sample.request.reply:
            if call := sample.reply.call:
                chunks.append(self._chunk(sample, {"tool_calls": [{"index": 0, **_call(call)}]}))
            chunks.append(self._chunk(sample, {}, sample.reply.finish))
        return chunks

    def closing(self) -> list[Event]:
        if not self.completion.include_usage:
            return []
        usage = self.completion.usage(_details(self.completion))
        return [_envelope(self.completion, "chat.completion.chunk", []) | {"usage": usage}]

    def _chunk(self, sample: Sample, delta: Mapping[str, Json], finish: str | None = None) -> Event:
        choice = {"index": sample.index, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _envelope(self.completion, "chat.completion.chunk", [choice])


def _details(completion: Completion) -> dict[str, Json]:
    """Reported by 0.32 even when they are 0; a whole answer has fields that are null besides, a stream has not."""
    return {"cached_tokens": completion.found, "created_cache_tokens": completion.created}


def _call(call: ToolCall) -> dict[str, Json]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _envelope(completion: Completion, kind: str, choices: list[Json]) -> dict[str, Json]:
    made = {"id": completion.id, "object": kind, "created": completion.created_s, "model": completion.model}
    return made | {"choices": choices}


API = Api(prefix="chatcmpl-", chat=dict, answer=_answer, stream=_Chunks, done=True)
