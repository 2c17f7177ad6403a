"""/v1/completions: a prompt as text or as token ids, and answers without a role."""

from __future__ import annotations

from loadgen.engine.api_parts import Api, Body, text_of
from loadgen.engine.completion import Completion
from loadgen.engine.errors import invalid
from loadgen.json_types import Json


def _from_completions(body: Body) -> dict[str, Json]:
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


def _text_completion(completion: Completion, text: str, finish: str | None) -> dict[str, Json]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    return {
        "id": completion.id,
        "object": "text_completion",
        "created": completion.created,
        "model": completion.model,
        "choices": [choice],
    }


def _completed(completion: Completion) -> dict[str, Json]:
    answer = _text_completion(completion, text_of(completion), completion.reply.finish)
    return answer | {"usage": completion.message()["usage"]}


API = Api(
    "cmpl-",
    _from_completions,
    _completed,
    lambda _: [],
    lambda completion, text: _text_completion(completion, text, None),
    lambda completion: [_text_completion(completion, "", completion.reply.finish)],
)
