"""Quiet pools, through a real Envoy: whatever paced clients send before their first turns, sessions spread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from loadgen.stack.stack import REDIS, Stack
from tests.support.agents import WORD, chat, get, loads, post, until

BEFORE = ["nothing", "models", "count", "title", "count at every turn"]


@pytest.fixture(scope="module")
def pair() -> Iterator[Stack]:
    """Two engines that answer at once: nothing is in flight when a decision is made."""
    with Stack(engines=2, engine_options=["--time-scale", "0.05"]) as running:
        yield running


async def helper(stack: Stack, kind: str, name: str) -> None:
    """What a client sends beside its conversation: SDKs list models, Claude Code counts tokens, others want a title."""
    if kind == "models":
        await get(stack, "/v1/models")
    elif kind.startswith("count"):
        await post(stack, chat(("user", f"{name} {WORD * 100}"), model="tiny"), path="/v1/messages/count_tokens")
    elif kind == "title":
        await post(stack, chat(("user", f"a title for {name}")))


async def session(stack: Stack, kind: str, name: str, turns: int) -> str:
    """An agent's session, one request after another; the engine that answered its first turn, and all others."""
    history = [("system", f"agent {name} {WORD * 100}")]
    engines: list[str] = []
    for turn in range(turns):
        if turn == 0 or kind == "count at every turn":
            await helper(stack, kind, f"{name} {turn}")
        await until(lambda: not any(loads(stack)))  # a reply is here a moment before its stream has ended
        answer = await post(stack, chat(*history, ("user", f"task {turn}")))
        assert answer.status == 200
        history += [("user", f"task {turn}"), ("assistant", answer.json["choices"][0]["message"]["content"] or "")]
        engines.append(answer.engine or "")
    assert len(set(engines)) == 1, "a session stays"
    return engines[0]


@pytest.mark.parametrize("kind", BEFORE)
async def test_twelve_sessions_spread_over_two_engines(pair: Stack, kind: str) -> None:
    """Six each, give or take one."""
    turns = 2 if kind == "count at every turn" else 1
    engines = Counter([await session(pair, kind, f"{kind} {i}", turns) for i in range(12)])
    assert all(5 <= engines[engine.address] <= 7 for engine in pair.engines), engines


async def test_large_and_small_first_turns_both_spread(pair: Stack) -> None:
    """Two agents in turn, one with a prompt of fifty times the other's: neither gets an engine to itself."""
    large, small = Counter[str](), Counter[str]()
    for i in range(16):
        answer = await post(pair, chat(("system", f"large {i} {WORD * 200}"), ("user", "go")))
        large[answer.engine or ""] += 1
        answer = await post(pair, chat(("system", f"small {i} {WORD * 4}"), ("user", "go")))
        small[answer.engine or ""] += 1
    assert all(large[engine.address] >= 4 for engine in pair.engines), large
    assert all(small[engine.address] >= 2 for engine in pair.engines), small


async def test_examples_written_as_replies_do_not_gather_sessions(pair: Stack) -> None:
    """Twelve sessions whose first requests share a few examples: all but the first two are known to begin, and spread;
    each then stays, as any other."""
    shots = [("system", f"You edit files. {WORD * 60}")]
    for shot in range(2):
        shots += [("user", f"example {shot} {WORD * 10}"), ("assistant", f"an edit {shot} {WORD * 10}")]
    engines = Counter[str]()
    for number in range(12):
        history = [*shots, ("user", f"user {number} asks {WORD * 10}")]
        first = await post(pair, chat(*history))
        reply = first.json["choices"][0]["message"]["content"] or ""
        again = await post(pair, chat(*history, ("assistant", reply), ("user", "and now")))
        assert again.engine == first.engine
        engines[first.engine or ""] += 1
    assert all(4 <= engines[engine.address] <= 8 for engine in pair.engines), engines


@pytest.mark.parametrize("kind", ["nothing", "models"])
async def test_two_routers_on_one_redis_spread_sessions(kind: str) -> None:
    """24 sessions that reach two routers in turn, on four engines: six each, give or take two."""
    options = ["--time-scale", "0.05"]
    with Stack(engines=4, workers=2, index=REDIS, engine_options=options) as stack:
        engines = Counter([await session(stack, kind, f"{kind} {i}", 1) for i in range(24)])
        assert all(4 <= engines[engine.address] <= 8 for engine in stack.engines), engines
