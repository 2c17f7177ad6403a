"""Prompts: a request -> exactly the bytes that the engine tokenises, and how far they are history.

Owns the order of what vLLM does between a normalised request and the tokenizer. Refuses to know JSON bodies
(`apis.py`), Jinja (`template.py`), and what a tokenizer does to text (`normalizer.py`). `PlainRenderer` stands in
where a pool names no model.
"""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from extproc.base.errors import BodyTooCostly, RenderError
from extproc.base.media import STAND_IN, trimmed
from extproc.base.model import MediaText, Prompt, Request
from extproc.prompts import history, message_shapes, template, template_probes
from extproc.prompts.history import agreement
from extproc.prompts.media import media_text
from extproc.prompts.template import ChatTemplate, Clock
from extproc.prompts.tokenizer.files import TokenizerFiles
from extproc.prompts.tokenizer.normalizer import Normalizer
from extproc.prompts.tokenizer.vocabulary import Vocabulary
from extproc.requests.chat import MEDIA

Message = Mapping[str, Any]

_log = logging.getLogger(__name__)

_END = b"\x1e"  # of each piece of a plain rendering: few texts can be taken for a message
_ENCODER = json.JSONEncoder(ensure_ascii=False)

# No real prompt is longer than this many characters for each byte of its body, and this many besides: the words of a
# template around tiny messages and a tool's schema, indented, make it up to five times as long. A tool that is nested
# hundreds deep would make it two thousand times as long.
_GROWTH = 8
_SLACK = 1 << 20


class PromptRenderer(Protocol):
    """What the router asks of a renderer."""

    collects: bool  # whether it copies the whole prompt with every message

    def render(self, request: Request) -> Prompt:
        """The prompt of a request. Raises RenderError, and nothing else."""


class Renderer:
    """Renders as vLLM does with the files of one model."""

    def __init__(
        self,
        templates: Mapping[str, ChatTemplate],
        normalizer: Normalizer,
        named_tokens: Mapping[str, str],
        vocabulary: Vocabulary,
    ) -> None:
        self._templates = templates
        self._normalizer = normalizer
        self._named_tokens = named_tokens
        self._vocabulary = vocabulary
        self._writing_ahead = {
            name
            for name, chosen in templates.items()
            if template_probes.writes_ahead(partial(self._looks_ahead, chosen))
        }
        self.collects = any(template.collects for template in templates.values())
        self._system_first = template_probes.wants_system_first(template.source for template in templates.values())
        self._marks = template_probes.marks(self._render_for_probe)

    @classmethod
    def load(cls, model_dir: Path, clock: Clock = datetime.now) -> Renderer:
        """Raises ConfigError for files that are missing, malformed or of a tokenizer that we do not know.

        `clock` gives the local time to templates that write the date.
        """
        files = TokenizerFiles.load(model_dir)
        for doubt in files.doubts():
            _log.warning("%s", doubt)
        sources = template.sources(model_dir, files.config)
        templates = {name: ChatTemplate(source, clock) for name, source in sources.items()}
        return cls(templates, Normalizer.load(files), files.named_tokens(), Vocabulary.of(files))

    def render(self, request: Request) -> Prompt:
        """The prompt of a request. Raises RenderError and BodyTooCostly, and MemoryError where there is too little."""
        try:
            return self._prompt(request)
        except (RenderError, BodyTooCostly, MemoryError):
            raise
        except Exception as error:  # a template may raise anything
            raise RenderError(f"the chat template failed: {type(error).__name__}: {str(error)[:200]}") from error

    def _prompt(self, request: Request) -> Prompt:
        if request.prompt is not None:
            return self._given(request.prompt, special_tokens=request.add_special_tokens)
        if request.anthropic:
            request = self._for_anthropic(request)
        name = "tool_use" if request.tools is not None and "tool_use" in self._templates else "default"
        chosen = self._templates[name]
        text, end = self._text(request, chosen, request.messages, ahead=name in self._writing_ahead)
        before, after = self._normalizer.around if request.add_special_tokens else (b"", b"")
        data = before + self._normalizer(text) + after

        def offset(place: int) -> int:
            """Bytes of `data` up to a character of `text`; counted from the end, as history is most of a prompt."""
            rest = self._normalizer(text[place:]) + after if place < len(text) else b""
            return max(0, len(data) - len(rest))

        prompt = Prompt(data, history=offset(end) if request.turn else 0, matchable=offset(len(text)))
        marked, kinds = message_shapes.marked_media(request.messages, in_place=chosen.wants_parts)
        if not kinds:
            return prompt
        other, end = self._text(request, chosen, marked, ahead=name in self._writing_ahead)
        parting = agreement(text, other)
        matchable = offset(parting)
        head = trimmed(data[:matchable], self._vocabulary.added)
        loosely = media_text(head, other[parting:], end - parting, kinds, self._normalizer.loosely)
        history = min(prompt.history, len(head)) if end <= parting else loosely.history
        return replace(prompt, matchable=matchable, media=replace(loosely, history=history if request.turn else 0))

    def _given(self, given: str | Sequence[int], *, special_tokens: bool) -> Prompt:
        """A prompt that came without messages: to ids nothing is added, and the replies in it have to be looked for."""
        if isinstance(given, str):
            before, after = self._normalizer.around if special_tokens else (b"", b"")
            data = before + self._normalizer(given) + after
        else:
            data = self._vocabulary.decode(given)
        replies, end = self._marks.find(data)
        return Prompt(data, end, matchable=len(data), replies=replies)

    def _for_anthropic(self, request: Request) -> Request:
        """What vLLM does to a request of /v1/messages after it has tried what the template can take."""
        if self._system_first:
            request = replace(request, messages=message_shapes.system_first(request.messages))
        if request.template_kwargs.get("reasoning_effort") == "none" and not self._can_stop_thinking:
            kwargs = {**request.template_kwargs, "reasoning_effort": "low", "enable_thinking": True}
            request = replace(request, template_kwargs=kwargs)
        return request

    @cached_property
    def _can_stop_thinking(self) -> bool:
        return template_probes.can_stop_thinking(self._render_for_probe)

    def _render_for_probe(self, request: Request) -> str | None:
        try:
            return self._text(request, self._templates["default"], request.messages)[0]
        except Exception:  # a template may raise anything
            return None

    def _text(
        self, request: Request, chosen: ChatTemplate, messages: Sequence[Message], *, ahead: bool = False
    ) -> tuple[str, int]:
        """The text of a prompt, and how many of its characters are history. See `history.render`."""
        shaped, run = self._prepared(request, chosen, messages)
        text, end = history.render(run, shaped, ahead=ahead)
        if request.continue_final_message:
            text = message_shapes.closed(text)
        return text, min(end, len(text))

    def _looks_ahead(self, chosen: ChatTemplate, request: Request) -> bool:
        """See `history.writes_ahead`."""
        shaped, run = self._prepared(request, chosen, request.messages)
        return history.writes_ahead(run, shaped)

    def _prepared(
        self, request: Request, chosen: ChatTemplate, messages: Sequence[Message]
    ) -> tuple[Sequence[Message], history.Run]:
        """The messages in the template's form, and what renders such messages."""
        messages = (message_shapes.with_parts if chosen.wants_parts else message_shapes.with_strings)(messages)
        if not chosen.names_developer:
            messages = message_shapes.without_developer(messages)
        if request.continue_final_message:
            if request.add_generation_prompt:
                raise RenderError("continue_final_message needs add_generation_prompt to be false")
            messages = message_shapes.opened(messages)
        variables = {
            **self._named_tokens,
            "documents": None,
            **request.template_kwargs,
            "tools": request.tools,
            "add_generation_prompt": request.add_generation_prompt,
        }
        limit = _GROWTH * request.size + _SLACK

        def run(shaped: Sequence[Message], fragments: list[str]) -> str:
            return chosen.run({**variables, "messages": shaped}, limit, fragments)

        return messages, run


class PlainRenderer:
    """Renders without a template, for pools that name no model: the tools, then role and content of each message.

    Prompts that begin alike give bytes that begin alike, which is all that routing by what was routed needs; they are
    no engine's bytes.
    """

    collects = False

    def render(self, request: Request) -> Prompt:
        """The prompt of a request. Raises RenderError, and nothing else."""
        try:
            return self._prompt(request)
        except (OverflowError, RecursionError, TypeError, ValueError) as error:
            raise RenderError(f"not renderable: {type(error).__name__}: {str(error)[:200]}") from error

    def _prompt(self, request: Request) -> Prompt:
        if request.prompt is not None:
            given = request.prompt
            data = given.encode() if isinstance(given, str) else array("q", given).tobytes()
            return Prompt(data, history=0, matchable=len(data))
        pieces = [_dump(tool) for tool in request.tools or ()]
        replied = 0
        media: dict[int, str] = {}  # by number of the piece
        for message in request.messages:
            content = message["content"]
            pieces.append(message["role"].encode())
            for part in ({"type": "text", "text": content},) if isinstance(content, str) else content:
                if part["type"] in MEDIA:
                    media[len(pieces)] = f"{message['role']} {part['type']}"
                pieces.append((part.get("text") or part["type"]).encode())
            pieces += map(_dump, message.get("tool_calls") or ())
            if message["role"] == "assistant":
                replied = len(pieces)
        ended = [piece + _END for piece in pieces]
        data, history = b"".join(ended), len(b"".join(ended[:replied]))
        if not media:
            return Prompt(data, history, matchable=len(data))
        shown = [STAND_IN if number in media else piece for number, piece in enumerate(ended)]
        ends = [0, *accumulate(map(len, shown))]
        head = ends[min(media)]
        places = [(ends[number], kind) for number, kind in media.items()]
        return Prompt(data, history, matchable=head, media=MediaText(b"".join(shown), ends[replied], head, places))


def _dump(value: Any) -> bytes:
    return _ENCODER.encode(value).encode()
