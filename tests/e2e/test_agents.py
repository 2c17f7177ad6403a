"""Agents as they are: compaction, forks, retries, parallel tool calls, long pauses; each on a real Envoy."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator

import pytest

from loadgen.stack.stack import Stack
from tests.support.agents import WORD, chat, decision, decisions, post


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Eight engines, slow enough that a burst overlaps."""
    with Stack(engines=8, engine_options=["--time-scale", "2"]) as running:
        yield running


async def test_16_forks_of_one_parent_spread(stack: Stack) -> None:
    """Sub-agents carry the parent's history and all hit its instance; no instance gets more than 4 of a burst of 16."""
    parent = [("system", WORD * 40), ("user", "plan the work")]
    first = await post(stack, chat(*parent, max_tokens=20))
    parent.append(("assistant", first.json["choices"][0]["message"]["content"]))
    before = len(decisions(stack, 1))
    forks = [chat(*parent, ("user", f"part {number}: {WORD}"), max_tokens=120) for number in range(16)]
    answers = await asyncio.gather(*(post(stack, fork) for fork in forks))
    assert {answer.status for answer in answers} == {200}
    served = Counter(answer.engine for answer in answers)
    assert max(served.values()) <= 4
    assert len(served) >= 5
    reasons = Counter(made["reason"] for made in decisions(stack, before + 16)[before:])
    assert reasons["overloaded"] > 0
    own = await post(stack, chat(*parent, ("user", "collect the parts")))
    made = await decision(stack, own)
    assert made["reason"] == "stick"
    assert made["hit_bytes"] == made["best_hit_bytes"]


async def test_a_retry_of_the_same_request_finds_its_own_cache(stack: Stack) -> None:
    """A client that repeats a follow-up after a time-out is sent to the same instance."""
    opening = [("system", "retry"), ("user", WORD * 40)]
    reply = (await post(stack, chat(*opening))).json["choices"][0]["message"]["content"]
    body = chat(*opening, ("assistant", reply), ("user", "go on"))
    with pytest.raises(TimeoutError):
        await post(stack, chat(*opening, ("assistant", reply), ("user", "go on"), max_tokens=4_000), timeout_s=0.5)
    engines = {(await post(stack, body)).engine for _ in range(3)}
    assert len(engines) == 1


async def test_parallel_tool_calls_are_one_turn(stack: Stack) -> None:
    """Several calls and their results belong to one reply: the turn counts replies, and the history matches whole."""
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": "read", "arguments": json.dumps({"path": f"{n}"})}}
        for n in range(3)
    ]
    messages: list[dict[str, object]] = [
        {"role": "system", "content": WORD * 30},
        {"role": "user", "content": "read three files"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        *({"role": "tool", "tool_call_id": f"call_{n}", "content": f"{n} {WORD * 10}"} for n in range(3)),
    ]
    body = json.dumps({"messages": messages, "max_tokens": 4}).encode()
    first = await post(stack, body)
    assert (await decision(stack, first))["turn"] == 1
    messages += [{"role": "assistant", "content": first.json["choices"][0]["message"]["content"]}]
    messages += [{"role": "user", "content": "thanks"}]
    second = await post(stack, json.dumps({"messages": messages, "max_tokens": 4}).encode())
    made = await decision(stack, second)
    assert (made["turn"], made["reason"]) == (2, "stick")
    assert second.engine == first.engine


async def test_an_idle_session_is_kept_while_its_cache_is(stack: Stack) -> None:
    """No session table runs out: only the engine's eviction ends a session's stay."""
    opening = [("system", "idle"), ("user", WORD * 60)]
    first = await post(stack, chat(*opening))
    reply = first.json["choices"][0]["message"]["content"]
    await asyncio.sleep(6)  # longer than what was just sent counts as cached
    second = await post(stack, chat(*opening, ("assistant", reply), ("user", "still there?")))
    assert second.engine == first.engine
    assert (await decision(stack, second))["reason"] == "stick"
