"""One request under way: what was asked for as far as answers repeat it, and its samples. Words no answer.

Knows neither HTTP nor how a prompt or a reply comes about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadgen.engine.clock import LiveRequest
from loadgen.engine.reply import Reply
from loadgen.json_types import Json


@dataclass(frozen=True, slots=True)
class Sample:
    """One of a request's answers: `n` asks for several of one prompt, each a request of its own to the engine."""

    index: int
    request: LiveRequest
    reply: Reply

    def text(self, before: int = 0, sampled: int | None = None) -> str:
        """What a client sees of the reply's tokens from `before` to `sampled`; of all of them by default."""
        return "".join(self.reply.pieces[before:sampled])


@dataclass(frozen=True, slots=True)
class Completion:
    """A request under way."""

    id: str
    created_s: int  # since 1970
    model: str
    samples: Sequence[Sample]
    stream: bool
    include_usage: bool
    cacheable: int  # tokens in whole blocks of the prompt

    @property
    def sample(self) -> Sample:
        """The first, which most requests leave at."""
        return self.samples[0]

    @property
    def request(self) -> LiveRequest:
        return self.sample.request

    @property
    def reply(self) -> Reply:
        return self.sample.reply

    @property
    def hit(self) -> int:
        """Prompt tokens that were found in the cache: vLLM reports the last sample's, which may hit the first's."""
        return self.samples[-1].request.hit

    @property
    def found(self) -> int:
        """The same, or what another engine had found for this one: the engine's own truth about a hit."""
        return max(self.hit, self.request.remote_hit)

    @property
    def created(self) -> int:
        """Prompt tokens that are in the cache from here on."""
        return self.cacheable - self.hit

    def usage(self, details: Mapping[str, Json]) -> dict[str, Json]:
        """The tokens, as chats and text completions report them; `details` are the prompt's."""
        prompt = self.request.prompt
        replies = sum(sample.request.reply for sample in self.samples)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + replies,
            "completion_tokens": replies,
            "prompt_tokens_details": details,
        }
