"""What the simulated model answers: plain words or a tool call, decided by a seed, never by chance.

A reply re-tokenises to its own token ids, in the next turn's history as well, so a follow-up hits the whole of it.
Knows neither HTTP nor time.
"""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadgen.engine.tokenizer import Tokens
from loadgen.json_types import Json

LENGTHS = (16, 96)  # tokens of a reply that nothing forces to another length
TOOL_SHARE = 0.7  # of the replies that may call a tool


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the client sees it; `arguments` is a JSON object as text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """`pieces[i]` is the text of token i as a client sees it: empty for the end of the turn and within a tool call."""

    tokens: array[int]
    pieces: Sequence[str]
    finish: str  # stop | length | tool_calls
    call: ToolCall | None = None


class Model:
    """Replies of one model, seeded by the prompt."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._words = tokens.words()
        if not self._words:
            raise ValueError("the tokenizer has no plain words to answer with")

    def reply(
        self,
        seed: bytes,
        limit: int,
        *,
        forced: bool = False,
        tools: Sequence[Mapping[str, Json]] = (),
        must_call: bool = False,
    ) -> Reply:
        """At most `limit` tokens, exactly that many if `forced` (ignore_eos).

        Args:
            seed: equal seeds give equal replies.
            tools: those that may be called, as in the request.
            must_call: a call whatever the seed says (tool_choice "required").
        """
        rng = random.Random(seed)
        if tools and not forced and (must_call or rng.random() < TOOL_SHARE):
            return self._call(rng, tools, limit)
        count = limit if forced else min(limit, rng.randint(*LENGTHS))
        ends = not forced and count < limit
        words = rng.choices(self._words, k=count - ends)
        ids = array("I", [token for token, _ in words])
        pieces = [text for _, text in words]
        if ends:
            ids.append(self._tokens.eos)
            pieces.append("")
        return Reply(ids, pieces, "stop" if ends else "length")

    def _call(self, rng: random.Random, tools: Sequence[Mapping[str, Json]], limit: int) -> Reply:
        """A call in Hermes' notation, which is the one of the template in `model/`."""
        function = rng.choice(tools)["function"]
        schema = function.get("parameters")
        arguments = _value(rng, schema, [text.strip() for _, text in self._words]) if isinstance(schema, dict) else {}
        written = json.dumps(arguments if isinstance(arguments, dict) else {}, ensure_ascii=False)
        name = json.dumps(function["name"], ensure_ascii=False)
        ids = self._tokens.encode(f'<tool_call>\n{{"name": {name}, "arguments": {written}}}\n</tool_call>')
        ids.append(self._tokens.eos)
        if len(ids) > limit:  # cut off in the middle: what a parser of calls hands through as text
            text = self._tokens.decode(ids[:limit].tolist())
            return Reply(ids[:limit], [""] * (limit - 1) + [text], "length")
        call = ToolCall(f"call_{rng.getrandbits(64):016x}", function["name"], written)
        return Reply(ids, [""] * len(ids), "tool_calls", call)


def _value(rng: random.Random, schema: Mapping[str, Json], words: Sequence[str], depth: int = 0) -> Json:
    """Something that a JSON schema of the usual kind accepts; required properties only."""
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return rng.choice(choices)
    kind = schema.get("type")
    if kind == "integer":
        return rng.randint(1, 400)
    if kind == "number":
        return rng.randint(1, 40) / 4
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "array":
        return []
    properties = schema.get("properties")
    if isinstance(properties, dict) and depth < 4:
        required = schema.get("required")
        names = [name for name in properties if isinstance(required, list) and name in required]
        shapes = {name: properties[name] for name in names if isinstance(properties[name], dict)}
        return {name: _value(rng, shape, words, depth + 1) for name, shape in shapes.items()}
    return {} if kind == "object" else " ".join(rng.choices(words, k=rng.randint(1, 4)))
