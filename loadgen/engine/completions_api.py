"""/v1/completions: a prompt as text or as token ids, and answers without a role."""

from __future__ import annotations

from loadgen.engine.api_parts import Api, Body, Event, Stream
from loadgen.engine.completion import Completion, Sample
from loadgen.engine.errors import invalid
from loadgen.json_types import Json


def _chat(body: Body) -> dict[str, Json]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise invalid("the simulated engine takes one prompt", "prompt")
        prompt = prompt[0]
    if not isinstance(prompt, str | list) or not prompt:
        raise invalid("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if isinstance(prompt, list) and not all(isinstance(token, int) and 0 <= token < 2**31 for token in prompt):
        raise invalid("a prompt is a text or a list of token ids", "prompt")
    return {name: value for name, value in body.items() if name != "messages"} | {"prompt": prompt}


def _answer(completion: Completion, _asked: Body) -> dict[str, Json]:
    choices = [_choice(sample, sample.text(), sample.reply.finish) for sample in completion.samples]
    nulls = {"created_cache_tokens": None, "multimodal_tokens": None}
    usage = completion.usage({"cached_tokens": completion.found} | nulls) | {"completion_tokens_details": None}
    return _envelope(completion, choices) | {"usage": usage}


class _Chunks(Stream):
    """The text as it comes; the last chunk of a sample says why it ends."""

    def advance(self, sample: Sample, before: int, sampled: int) -> list[Event]:
        finish = sample.reply.finish if sampled == sample.request.reply else None
        text = sample.text(before, sampled)
        return [_envelope(self.completion, [_choice(sample, text, finish)])] if text or finish else []

    def closing(self) -> list[Event]:
        if not self.completion.include_usage:
            return []
        usage = self.completion.usage({"cached_tokens": self.completion.found})
        return [_envelope(self.completion, []) | {"usage": usage}]


def _choice(sample: Sample, text: str, finish: str | None) -> Json:
    return {"index": sample.index, "text": text, "logprobs": None, "finish_reason": finish}


def _envelope(completion: Completion, choices: list[Json]) -> dict[str, Json]:
    made = {
        "id": completion.id,
        "object": "text_completion",
        "created": completion.created_s,
        "model": completion.model,
    }
    return made | {"choices": choices}


API = Api(prefix="cmpl-", chat=_chat, answer=_answer, stream=_Chunks, done=True)
