"""POST /v1/chat/completions without HTTP: a body becomes a completion, ready for the engine.

Pure: the shell (`http.py`) reads bodies and waits for tokens; what it then writes is `completion.py`'s.
"""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from loadgen.engine import media
from loadgen.engine.block_keys import chain, extra_keys
from loadgen.engine.chat_template import ChatError, ChatTemplate, images
from loadgen.engine.clock import LiveRequest
from loadgen.engine.completion import Completion, Sample
from loadgen.engine.errors import Refused, bad_request, invalid
from loadgen.engine.media import Span
from loadgen.engine.reply import Model, Reply
from loadgen.engine.tokenizer import Tokens
from loadgen.json_types import Json

MOST_SAMPLES = 64  # of one request: vLLM's own limit is configurable


@dataclass(frozen=True, slots=True)
class Served:
    """What an engine serves. The first of `models`, all names of the base model, is the default."""

    models: Sequence[str]
    adapters: Sequence[str]  # LoRA
    max_model_len: int  # tokens of prompt plus reply
    block_size: int


def parse(raw: bytes) -> dict[str, Json]:
    """The JSON object of a body, read as vLLM reads it (Python's `json`: the last of equal keys wins).

    Raises:
        Refused: 400, it is no JSON object.
    """
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise invalid(f"the body is not JSON ({error})") from error
    if not isinstance(body, dict):
        raise invalid("the body is not a JSON object")
    return body


class ChatApi:
    """Turns bodies into completions, by the template, the tokenizer and the replies of one model directory."""

    def __init__(self, model_dir: Path, served: Served) -> None:
        self.served = served
        self._template = ChatTemplate(model_dir)
        self._tokens = Tokens(model_dir)
        self._model = Model(self._tokens)

    def start(self, body: Mapping[str, Json], *, id: str, created: int) -> Completion:  # noqa: A002 - OpenAI's name
        """A completion, ready for the engine.

        Raises:
            Refused: as vLLM refuses: 404 for a model that is not served, 400 for everything else.
        """
        model = self.model(body)
        salt = _optional(body, "cache_salt", str)
        if salt == "":
            raise invalid("cache_salt must not be empty", "cache_salt")
        count = _count(body)
        tokens, images = self._prompt(body)
        progress: asyncio.Queue[LiveRequest] = asyncio.Queue()
        samples = []
        for index in range(count):
            reply = self._reply(body, tokens, model, index)
            samples.append(Sample(index, self._request(tokens, reply, images, model, salt, progress), reply))
        size = self.served.block_size
        return Completion(
            id=id,
            created_s=created,
            model=model,
            samples=samples,
            stream=bool(_optional(body, "stream", bool)),
            include_usage=bool((_optional(body, "stream_options", dict) or {}).get("include_usage")),
            cacheable=len(tokens) // size * size,
        )

    def _request(
        self,
        prompt: array[int],
        reply: Reply,
        images: Sequence[Span],
        model: str,
        salt: str | None,
        progress: asyncio.Queue[LiveRequest],
    ) -> LiveRequest:
        tokens = prompt + reply.tokens
        lora = model if model in self.served.adapters else None
        size = self.served.block_size
        extras = extra_keys((len(tokens) - 1) // size, lora, salt, size=size, images=images)
        return LiveRequest(
            prompt=len(prompt),
            reply=len(reply.tokens),
            keys=chain(tokens, size, extras),
            tokens=tokens,
            extras=extras,
            lora=lora,
            lora_id=self.served.adapters.index(lora) + 1 if lora else None,
            progress=progress,
        )

    def model(self, body: Mapping[str, Json]) -> str:
        """The model that a body names; the default where it names none.

        Raises:
            Refused: 404, not served.
        """
        model = _optional(body, "model", str) or self.served.models[0]
        if model not in (*self.served.models, *self.served.adapters):
            raise Refused(404, "NotFoundError", f"The model `{model}` does not exist.", "model")
        return model

    def prompt(self, body: Mapping[str, Json]) -> array[int]:
        """Token ids of the prompt of a chat, or of a `prompt` that is given as text or as ids.

        Raises:
            Refused: 400, it cannot be rendered or leaves no room for a reply.
        """
        return self._prompt(body)[0]

    def text(self, completion: Completion) -> str:
        """The prompt of a completion, as its tokens read."""
        return self._tokens.decode(completion.request.tokens[: completion.request.prompt].tolist())

    def _prompt(self, body: Mapping[str, Json]) -> tuple[array[int], list[Span]]:
        """The prompt, and where its images stand."""
        if "chat_template" in body:
            raise bad_request("a chat template of the request's own is not trusted", "chat_template")
        given = None if "messages" in body else body.get("prompt")
        spans: list[Span] = []
        try:
            if isinstance(given, list):
                tokens = array("I", given)
            elif given is not None:
                tokens = self._tokens.encode(given)
            else:
                tokens, spans = self._chat(body)
        except ChatError as error:
            raise invalid(str(error), error.param) from error
        except ValueError as error:
            raise invalid(str(error)) from error
        if len(tokens) >= self.served.max_model_len:
            raise self._too_long(len(tokens))
        return tokens, spans

    def _chat(self, body: Mapping[str, Json]) -> tuple[array[int], list[Span]]:
        tokens = self._tokens.encode(self._template.render(body))
        shown = images(body)
        if not shown:
            return tokens, []
        token = self._tokens.id_of(media.TOKEN)
        if token is None:
            raise ChatError(f"the model sees no images: its vocabulary lacks {media.TOKEN}", "messages")
        return media.expand(tokens, token, shown)

    def tokenize(self, body: Mapping[str, Json]) -> dict[str, Json]:
        """The answer of POST /tokenize, for `messages` or for a plain `prompt`.

        Raises:
            Refused: as for a completion.
        """
        self.model(body)
        text = _optional(body, "prompt", str)
        try:
            tokens = self.prompt(body) if text is None else self._tokens.encode(text)
        except ValueError as error:
            raise invalid(str(error), "prompt") from error
        return {"count": len(tokens), "max_model_len": self.served.max_model_len, "tokens": tokens.tolist()}

    def render(self, body: Mapping[str, Json], *, id: str) -> dict[str, Json]:  # noqa: A002 - OpenAI's name
        """The answer of POST /v1/chat/completions/render: the tokens that a chat would be served with.

        Raises:
            Refused: as for a completion.
        """
        model = self.model(body)
        salt = _optional(body, "cache_salt", str)
        tokens = self.prompt(body).tolist()
        return {"request_id": id, "token_ids": tokens, "sampling_params": {}, "model": model, "cache_salt": salt}

    def _reply(self, body: Mapping[str, Json], prompt: array[int], model: str, index: int) -> Reply:
        room = self.served.max_model_len - len(prompt)
        wanted = _optional(body, "max_completion_tokens", int)
        wanted = _optional(body, "max_tokens", int) if wanted is None else wanted
        if wanted is not None and wanted < 1:
            raise bad_request(f"max_tokens must be at least 1, got {wanted}.", "max_tokens")
        if wanted is not None and wanted > room:
            raise self._too_long(len(prompt), wanted)
        tools, must_call = _tools(body)
        seed = model.encode() + prompt.tobytes() + (str(index).encode() if index else b"")
        return self._model.reply(
            sha256(seed).digest(),
            room if wanted is None else wanted,
            forced=bool(_optional(body, "ignore_eos", bool)) and wanted is not None,
            tools=tools,
            must_call=must_call,
        )

    def _too_long(self, prompt: int, wanted: int = 0) -> Refused:
        asked = f"you requested {wanted} output tokens and " if wanted else ""
        return bad_request(
            f"This model's maximum context length is {self.served.max_model_len} tokens. However, {asked}your prompt "
            f"contains at least {prompt} input tokens.",
            "input_tokens",
        )


def _count(body: Mapping[str, Json]) -> int:
    """How many answers are asked for.

    Raises:
        Refused: 400, as vLLM refuses a number that makes no sense.
    """
    count = _optional(body, "n", int)
    if count is None:
        return 1
    if not 1 <= count <= MOST_SAMPLES:
        raise bad_request(f"n must be from 1 to {MOST_SAMPLES}, got {count}.", "n")
    if count > 1 and body.get("temperature") == 0:
        raise bad_request(f"n must be 1 when using greedy sampling, got {count}.", "n")
    return count


def _tools(body: Mapping[str, Json]) -> tuple[list[Json], bool]:
    """The tools that a reply may call, and whether it must call one.

    Raises:
        Refused: 400, the choice names no tool of the request's.
    """
    choice, tools = body.get("tool_choice"), body.get("tools") or []
    if choice == "none":
        return [], False
    if choice not in (None, "auto", "required") and not isinstance(choice, dict):
        raise invalid(f"Invalid value for `tool_choice`: {choice}", "tool_choice")
    if choice is not None and not tools:
        raise invalid("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        tools = [tool for tool in tools if tool["function"]["name"] == name]
        if not tools:
            raise invalid("tool_choice names none of the tools", "tool_choice")
    return tools, choice == "required" or isinstance(choice, dict)


T = TypeVar("T")


def _optional(body: Mapping[str, Json], field: str, kind: type[T]) -> T | None:
    """A field that may be missing or null.

    Raises:
        Refused: 400, it is of another type.
    """
    value = body.get(field)
    # A bool is an int to Python, and to no client.
    if value is None or (isinstance(value, kind) and not (kind is int and isinstance(value, bool))):
        return value
    raise invalid(f"{field} must be of type {kind.__name__}", field)
