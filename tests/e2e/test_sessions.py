"""The main job on real parts: sessions balanced once through a real Envoy, then kept where their cache is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from loadgen.stack.stack import MEMORY, REDIS, Stack
from tests.support.agents import (
    WORD,
    chat,
    complaints,
    decision,
    decisions,
    errors,
    first_instances,
    loads,
    played,
    post,
    sessions,
    stickiness,
    until,
)


@pytest.mark.parametrize("index", [MEMORY, REDIS])
async def test_24_sessions_with_one_system_prompt(index: str) -> None:
    """Each of 4 engines gets 6 of the 24 sessions, and at least 95 % of follow-ups return; nothing is left behind."""
    with Stack(engines=4, index=index) as stack:
        rows = await played(stack, sessions(24, 4, system=14_000))
        made = decisions(stack, 96)
        assert not errors(rows)
        assert first_instances(rows) == {engine.address: 6 for engine in stack.engines}
        assert stickiness(rows) >= 0.95
        assert [d["reason"] for d in made].count("first_turn") == 24
        await until(lambda: not any(loads(stack)))
        assert stack.envoy_counter("http.agents.ext_proc.streams_failed") == 0
        assert stack.envoy_counter("http.agents.ext_proc.spurious_msgs_received") == 0
        assert stack.envoy_counter("http.agents.ext_proc.message_timeouts") == 0
        assert stack.envoy_counter("http.agents.ext_proc.failure_mode_allowed") == 0
        assert not complaints(stack)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Two engines with room for about 60,000 bytes of text each."""
    with Stack(engines=2, engine_options=["--blocks", "1200"]) as running:
        yield running


async def test_predicted_hits_are_the_engines_own(stack: Stack) -> None:
    """For each turn of a session alone, the predicted hit agrees with `cached_tokens` within one prompt block."""
    history: list[tuple[str, str]] = [("system", WORD * 50)]
    for turn in range(4):
        history.append(("user", f"{turn} {WORD * 30}"))
        answer = await post(stack, chat(*history, max_tokens=40))
        made = await decision(stack, answer)
        usage = answer.json["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"] * made["prompt_bytes"]
        engine_block = 16 * made["prompt_bytes"] / usage["prompt_tokens"]
        assert abs(made["hit_bytes"] - cached) <= 256 + engine_block
        assert made["reason"] == ("stick" if turn else "first_turn")
        assert made["hit_bytes"] <= made["best_hit_bytes"] <= made["prompt_bytes"]
        assert turn == 0 or 0 < made["history_bytes"] < made["prompt_bytes"]
        history.append(("assistant", answer.json["choices"][0]["message"]["content"] or ""))


async def test_an_evicted_session_is_balanced_again(stack: Stack) -> None:
    """Others need the room; when the session returns, its history is gone, and it is as good as new."""
    opening = [("system", "evicted"), ("user", WORD * 200)]
    reply = (await post(stack, chat(*opening))).json["choices"][0]["message"]["content"]
    again = chat(*opening, ("assistant", reply), ("user", "and now?"))
    assert (await decision(stack, await post(stack, again)))["reason"] == "stick"
    for number in range(16):
        await post(stack, chat(("system", f"other {number}"), ("user", WORD * 200)))
    await asyncio.sleep(5.5)  # what was just sent counts as cached for five seconds
    made = await decision(stack, await post(stack, again))
    assert made["reason"] == "evicted"
    assert made["best_hit_bytes"] <= made["history_bytes"] / 2


async def test_a_compacted_session_counts_as_new(stack: Stack) -> None:
    """An agent that drops its history sends a new prefix without assistant messages: a first turn."""
    before = len(stack.access_log())
    went_on = sessions(1, 4, text=400, seed=7)
    compacted = [
        replace(one, turn=place % 2, history=0 if place == 2 else one.history)
        for place, one in enumerate(went_on.requests)
    ]
    assert not errors(await played(stack, replace(went_on, requests=compacted)))
    reasons = [made["reason"] for made in decisions(stack, before + 4)[-4:]]
    assert reasons == ["first_turn", "stick", "first_turn", "stick"]


async def test_an_overloaded_instance_sheds_sessions() -> None:
    """Eight forks of one parent do not all wait for the parent's instance."""
    with Stack(engines=4, engine_options=["--time-scale", "2"]) as stack:
        parent = [("system", WORD * 60), ("user", "begin")]
        answer = await post(stack, chat(*parent))
        home, reply = answer.engine, answer.json["choices"][0]["message"]["content"]
        parent.append(("assistant", reply))
        forks = [chat(*parent, ("user", f"part {number}: {WORD}"), max_tokens=100) for number in range(8)]
        answers = await asyncio.gather(*(post(stack, fork) for fork in forks))
        assert {answer.status for answer in answers} == {200}
        served = Counter(answer.engine for answer in answers)
        reasons = Counter(made["reason"] for made in decisions(stack, 9)[1:])
        assert reasons["stick"] >= 2
        assert reasons["overloaded"] >= 4
        assert len(served) == 4
        assert max(served.values()) <= 4
        follow_up = await post(stack, chat(*parent, ("user", "go on")))
        assert follow_up.engine in served
        assert (await decision(stack, follow_up))["reason"] == "stick"
        assert home in served
