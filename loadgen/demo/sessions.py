"""Synthetic agent sessions: what agents send, turn by turn, as plain data and by a seed.

A session starts with a long system prompt that all share, and tools; each turn brings a tool's output or a user's
words; what the model answered in between is unknown here and filled in by who runs the session (`agents.py`).
Equal arguments give equal sessions, on every machine.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.json_types import Json

VERBS = "read write open close list find move copy drop load store check merge split build start stop send wait lock"
NOUNS = "file index lease block table queue cache route pool shard token batch event schema handler session replica"
PATHS = "src lib tests docs tools core router engine policy storage network cli"


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. `text` is the tool's output, or a user's words where the reply before called no tool."""

    text: str
    think_s: float  # seconds between the reply before and this request; 0 for the first
    max_tokens: int
    compact: bool = False  # the agent dropped its history: system prompt, a summary (`text`), and nothing else


@dataclass(frozen=True, slots=True)
class Session:
    """One agent's conversation."""

    id: str
    system: str
    tools: Sequence[dict[str, Json]]
    turns: Sequence[Turn]


def sessions(
    count: int,
    turns: int,
    system_bytes: int = 40_000,
    seed: int = 0,
    *,
    turn_bytes: int = 4_000,
    think_s: float = 0.0,
    max_tokens: int = 64,
    compact_every: int | None = None,
) -> list[Session]:
    """`count` sessions of `turns` requests each.

    Args:
        count: sessions; all share the system prompt and the tools.
        turns: requests of each.
        system_bytes: length of system prompt and tools together.
        seed: of everything random.
        turn_bytes: mean length of what a turn brings; from half to one and a half times that.
        think_s: mean seconds between a reply and the next request, exponential, at most four times the mean; all
            sessions start at once.
        max_tokens: limit of each reply.
        compact_every: every so many turns an agent drops its history; None for never.

    Raises:
        ValueError: a count or a length that is not positive.
    """
    if min(count, turns, turn_bytes, max_tokens) < 1 or system_bytes < 0:
        raise ValueError("sessions, turns and lengths must be positive")
    rng = random.Random(seed)
    tools = [_tool(rng, verb) for verb in VERBS.split()[:8]]
    system = _text(rng, max(1, system_bytes - len(json.dumps(tools))), "You are an agent that works on a repository.")
    made: list[Session] = []
    for number in range(count):
        own = random.Random(f"{seed}/{number}")
        task = f"Session {number} of seed {seed}: {_sentence(own)}"
        steps: list[Turn] = []
        for index in range(turns):
            compact = bool(compact_every and index and index % compact_every == 0)
            opening = task if index == 0 else f"Summary of the work on {task}" if compact else f"exit status 0, {index}"
            steps.append(
                Turn(
                    text=_text(own, round(turn_bytes * own.uniform(0.5, 1.5)), opening),
                    think_s=min(own.expovariate(1 / think_s), 4 * think_s) if think_s and index else 0.0,
                    max_tokens=max_tokens,
                    compact=compact,
                )
            )
        made.append(Session(f"s{number}", system, tools, steps))
    return made


def _sentence(rng: random.Random) -> str:
    words = [rng.choice(VERBS.split()) if place % 3 == 0 else rng.choice(NOUNS.split()) for place in range(9)]
    return " ".join(words) + "."


def _text(rng: random.Random, length: int, opening: str) -> str:
    """About `length` bytes of what agents read: lines of listings and prose, plain ASCII."""
    lines = [opening]
    size = len(opening)
    while size < length:
        path = "/".join(rng.choices(PATHS.split(), k=3))
        line = f"{path}/{rng.choice(NOUNS.split())}.py:{rng.randint(1, 900)}: {_sentence(rng)}"
        lines.append(line)
        size += len(line) + 1
    return "\n".join(lines)[: max(length, len(opening))]


def _tool(rng: random.Random, verb: str) -> dict[str, Json]:
    noun = rng.choice(NOUNS.split())
    return {
        "type": "function",
        "function": {
            "name": f"{verb}_{noun}",
            "description": f"{verb.capitalize()} a {noun}: {_sentence(rng)}",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": _sentence(rng)},
                    "line": {"type": "integer", "description": _sentence(rng)},
                },
                "required": ["path", "line"],
            },
        },
    }
