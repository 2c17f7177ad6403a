"""Real text for a trace's requests, of the right token lengths, for engines that tokenise for real.

Follow-ups quote what the engine really answered, so what is said here is the system prompt, what each turn adds, and
whatever the trace shows that nobody really answered: a history from before the trace, or one that was rewritten. Equal
block names give equal words, so what prompts share in the trace they share on the wire, up to the last whole message.

Knows nothing of HTTP, and of a chat template only how many tokens it puts around a message.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from loadgen.engine.chat_template import ChatTemplate
from loadgen.engine.tokenizer import Tokens
from loadgen.json_types import Json
from loadgen.replay.script import Turn
from loadgen.replay.tools import Tools
from loadgen.workloads.trace import Trace, TraceRequest, common, cut, length, names

REMEMBERED = 16_384  # blocks' words: 10 MB of references for blocks of 64 tokens


class _End(NamedTuple):
    """Where a message of a conversation ends, in tokens of the rendered prompt."""

    at: int
    reply: bool


class Words:
    """The words of a workload: a `script.Script`. A parent must be asked for before its children."""

    def __init__(self, trace: Trace, model_dir: Path) -> None:
        """`model_dir`: tokenizer and chat template of the model that will be asked (as `engine --model-dir`).

        Raises OSError and ValueError where they cannot be used.
        """
        tokens = Tokens(model_dir)
        self._vocabulary = [text for _, text in tokens.words()]
        if not self._vocabulary:
            raise ValueError(f"{model_dir}/tokenizer.json: no words of a single token, so no text of a known length")
        template = ChatTemplate(model_dir)
        self._frame, self._closing = _overhead(tokens, template, self._vocabulary[0])
        self._tools = Tools(tokens, template, self._vocabulary[0])
        self._size = trace.block_size
        self._requests = {request.id: request for request in trace.requests}
        self._ends: dict[str, list[_End]] = {}  # of a request's messages, its reply included
        self._block = lru_cache(REMEMBERED)(self._draw)

    def ask(self, request: TraceRequest) -> Turn:
        """What a request says: rendered, it comes to `request.input` tokens, or as near as whole messages allow."""
        parent = self._requests.get(request.parent) if request.parent is not None else None
        before = self._ends[parent.id] if parent else []
        keep = self._kept(request, parent, before) if parent else 0
        ends = before[:keep]
        messages: list[dict[str, Json]] = []

        def say(role: str, end: int) -> None:
            start = ends[-1].at if ends else 0
            taken = request.tools if tools and role == "system" else 0
            count = max(1, end - start - self._frame - taken)
            messages.append({"role": role, "content": self._text(request, start, count, system=role == "system")})
            ends.append(_End(start + count + self._frame + taken, role == "assistant"))

        tools = self._defined(request)
        if not ends and request.system:
            say("system", request.system)
        for role, end in self._history(request, ends):
            say(role, end)
        say("user", request.input - self._closing)
        replied = ends[-1].at + self._frame + request.output
        self._ends[request.id] = [*ends, _End(replied, True)]
        return Turn(keep, messages, tools)

    def _defined(self, request: TraceRequest) -> list[Json]:
        """Tools out of the words at the end of the system prompt, where templates write them."""
        count = self._tools.words(request.tools)
        return self._tools.define(request.tools, self._said(request, request.system - count, count, system=True))

    def _kept(self, request: TraceRequest, parent: TraceRequest, before: list[_End]) -> int:
        """How many messages of the parent's conversation the prompt still begins with."""
        if request.turn == 0:
            return 1 if request.system and request.system == parent.system else 0
        whole = parent.input + parent.output
        if request.history >= whole and (not request.blocks or self._unbroken(request, parent)):
            return len(before)
        if not request.blocks:
            agreed = request.history
        elif self._unbroken(request, parent):
            agreed = parent.input
        else:  # somewhere in the block after the common ones
            agreed = (common(request.blocks, parent.blocks) + 1) * self._size - 1
        return bisect_right(before, agreed, key=lambda end: end.at)

    def _unbroken(self, request: TraceRequest, parent: TraceRequest) -> bool:
        whole = min(parent.input // self._size, length(parent.blocks))  # a part of a block changes as it fills
        return common(request.blocks, parent.blocks) >= whole

    def _history(self, request: TraceRequest, ends: list[_End]) -> list[tuple[str, int]]:
        """Messages in place of replies that cannot be quoted, in turn user's and assistant's, with their ends."""
        start = ends[-1].at if ends else 0
        missing = request.turn - sum(end.reply for end in ends)
        asked = len(ends) > (1 if request.system else 0) and not ends[-1].reply
        count = min(2 * missing - asked, (request.history - start) // (self._frame + 1))
        if (count + asked) % 2:
            count -= 1
        return [
            ("assistant" if (place + asked) % 2 else "user", start + (request.history - start) * (place + 1) // count)
            for place in range(count)
        ]

    def _text(self, request: TraceRequest, start: int, count: int, *, system: bool) -> str:
        return "".join(self._said(request, start, count, system=system))

    def _said(self, request: TraceRequest, start: int, count: int, *, system: bool) -> list[str]:
        """`count` words: those that stand at positions `start` and on of the prompt."""
        size = self._size
        first, last = start // size, (start + count - 1) // size
        named = cut(request.blocks, first, min(last + 1, (request.system if system else request.input) // size))
        seeds: list[int | str] = list(names(named))
        rest = f"after {seeds[-1] if seeds else request.system}" if system else f"in {request.id}"
        seeds += [f"{rest}/{place}" for place in range(first + len(seeds), last + 1)]
        words = [word for seed in seeds for word in self._block(seed)]
        return words[start - first * size :][:count]

    def _draw(self, seed: int | str) -> list[str]:
        return random.Random(seed).choices(self._vocabulary, k=self._size)


def _overhead(tokens: Tokens, template: ChatTemplate, word: str) -> tuple[int, int]:
    """Tokens that a template puts around each message, and after the last one."""

    def rendered(*roles: str) -> int:
        messages = [{"role": role, "content": word} for role in roles]
        return len(tokens.encode(template.render({"messages": messages})))

    short = rendered("system", "user")
    frame = (rendered("system", "user", "assistant", "user") - short) // 2 - 1
    return frame, short - 2 * (frame + 1)
