"""A hint of what was just sent where ends with the engine's word, through a real Envoy: alone and over Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from loadgen.stack.stack import REDIS, Stack
from tests.support.agents import WORD, Answer, chat, decision, post
from tests.support.routers import directly


@pytest.fixture(scope="module", params=["memory://", REDIS])
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    with Stack(engines=2, workers=1 if request.param == "memory://" else 2, index=request.param) as running:
        yield running


class Session:
    """One agent's history, and where its requests went."""

    def __init__(self, stack: Stack, name: str) -> None:
        self._stack = stack
        self._history = [("system", f"{name} {WORD * 60}")]
        self.answers: list[Answer] = []

    async def turn(self) -> str:
        """Send the next turn; why it went where it went."""
        self._history.append(("user", f"turn {len(self.answers)} {WORD}"))
        answer = await post(self._stack, chat(*self._history))
        assert answer.status == 200
        self._history.append(("assistant", answer.json["choices"][0]["message"]["content"] or ""))
        self.answers.append(answer)
        return str((await decision(self._stack, answer))["reason"])


async def cleared(stack: Stack) -> AsyncIterator[str]:
    """Empty every engine's cache; an engine says so with the next thing that it says."""
    async with aiohttp.ClientSession() as http:
        for engine in stack.engines:
            async with http.post(f"{engine.url}/reset_prefix_cache") as answer:
                assert answer.status == 200
            yield engine.address
            await directly(engine, chat(("user", f"something else {WORD * 40}")))


async def test_a_cleared_cache_holds_no_session(stack: Stack) -> None:
    """Six sessions whose last turn is a moment ago: all their caches are cleared, and none is taken to be there."""
    sessions = [Session(stack, f"cleared {number}") for number in range(6)]
    for session in sessions:
        assert await session.turn() == "first_turn"
        assert await session.turn() == "stick"
    assert [address async for address in cleared(stack)] == [engine.address for engine in stack.engines]
    await asyncio.sleep(0.5)  # the events' way, and well within a hint's five seconds
    assert [await session.turn() for session in sessions] == ["evicted"] * 6


async def test_a_follow_up_that_comes_at_once_sticks(stack: Stack) -> None:
    """What hints are for: the engine's events may still be on their way."""
    session = Session(stack, "quick")
    reasons = [await session.turn() for _ in range(5)]
    assert reasons == ["first_turn", *["stick"] * 4]
    assert len({answer.engine for answer in session.answers}) == 1
