"""Sessions with images through a real Envoy: they stay, spread, and leave as any other."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from extproc.base.media import MEDIUM_BYTES
from extproc.requests.paths import Api
from loadgen.stack.parts import Engine
from loadgen.stack.stack import REDIS, Stack
from tests.support.agents import WORD, Answer, chat, complaints, decision, loads, post, until
from tests.support.routers import directly, hit

Message = dict[str, Any]

SYSTEM = f"You drive a browser and are careful. {WORD * 60}"
BLOCKS = 1_200  # of 16 tokens: about 60,000 bytes of text an engine
LONG = {"max_tokens": 4_000, "ignore_eos": True}  # half a minute: longer than any test waits


def picture(name: str) -> str:
    return f"data:image/png;base64,{name}"


class Session:
    """One agent that is shown a screenshot at every step, by one of the APIs."""

    def __init__(self, name: str, image: str, path: str = Api.CHAT) -> None:
        self._name, self._path = name, path
        self._said: list[Message] = []
        self._see(f"what is on this page? {name}", image)
        self.turns = 0

    async def turn(self, stack: Stack, **fields: Any) -> Answer:
        """Ask, and take the answer and the next screenshot into the history."""
        answer = await post(stack, self.body(**fields), path=self._path)
        assert answer.status == 200, answer.body
        self._said.append(self._assistant(f"{self._name} step {self.turns}: I see a button and click on it. " * 8))
        self._see(f"result {self.turns}: {WORD * 4}", f"{self._name}{self.turns}")
        self.turns += 1
        return answer

    def body(self, **fields: Any) -> bytes:
        """The next request."""
        body: Message = {"temperature": 0, **fields}
        if self._path == Api.CHAT:
            body |= {"messages": [{"role": "system", "content": SYSTEM}, *self._said]}
        elif self._path == Api.MESSAGES:
            body |= {"model": "tiny", "system": SYSTEM, "messages": self._said}
        else:
            body |= {"instructions": SYSTEM, "input": self._said, "store": False}
        limit = "max_output_tokens" if self._path == Api.RESPONSES else "max_tokens"
        return json.dumps({limit: 8, **body}).encode()

    def _see(self, text: str, image: str) -> None:
        if self._path == Api.CHAT:
            parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": picture(image)}}]
        elif self._path == Api.MESSAGES:
            source = {"type": "base64", "media_type": "image/png", "data": image}
            parts = [{"type": "text", "text": text}, {"type": "image", "source": source}]
        else:
            parts = [{"type": "input_text", "text": text}, {"type": "input_image", "image_url": picture(image)}]
        self._said.append({"role": "user", "content": parts})

    def _assistant(self, text: str) -> Message:
        if self._path == Api.RESPONSES:
            content = [{"type": "output_text", "text": text}]
            return {"type": "message", "role": "assistant", "content": content}
        return {"role": "assistant", "content": text}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Three engines that serve a model with eyes."""
    with Stack(engines=3, engine_options=["--blocks", str(BLOCKS)]) as running:
        yield running


@pytest.mark.parametrize("path", [Api.CHAT, Api.MESSAGES, Api.RESPONSES])
async def test_sessions_with_images_stay(stack: Stack, path: str) -> None:
    """Eight turns on one of three engines, whatever the API, though all engines know the system prompt; and the engine
    finds its cache there, images and all."""
    for number in range(3):
        session = Session(f"{path.rpartition('/')[2]}-{number}", f"first{number}", path)
        answers = [await session.turn(stack) for _ in range(8)]
        assert len({answer.engine for answer in answers}) == 1
        decided = [await decision(stack, answer) for answer in answers]
        assert [each["reason"] for each in decided] == ["first_turn"] + ["stick"] * 7
        assert all(each["hit_bytes"] > 0.5 * each["history_bytes"] for each in decided[1:])
        if path == Api.CHAT:
            usage = [answer.json["usage"] for answer in answers[1:]]
            assert all(each["prompt_tokens_details"]["cached_tokens"] > 0.5 * each["prompt_tokens"] for each in usage)


async def test_one_image_of_several_sessions_pins_none_together(stack: Stack) -> None:
    """Six sessions that look at the same screenshot spread evenly, and each stays where it went."""
    sessions = [Session(f"same-{number}", "shared") for number in range(6)]
    first = [(await session.turn(stack)).engine for session in sessions]
    assert sorted(first.count(engine.address) for engine in stack.engines) == [2, 2, 2]
    for _ in range(2):
        assert [(await session.turn(stack)).engine for session in sessions] == first


@pytest.mark.parametrize("system", [WORD, SYSTEM], ids=["everything", "all but the system prompt"])
async def test_an_evicted_session_leaves(stack: Stack, system: str) -> None:
    """Where other prompts pushed a session out of the cache, its next turn goes by load, and stays there: also where
    they share its system prompt, so that all of its text before the first image is still there."""
    session = Session(f"evicted {len(system)}", f"evicted{len(system)}")
    first = [await session.turn(stack) for _ in range(3)][-1]
    (engine,) = [engine for engine in stack.engines if engine.address == first.engine]
    assert hit(stack, engine, session.body()) > len(SYSTEM) + 2 * MEDIUM_BYTES
    for number in range(8):
        await directly(engine, chat(("system", system), ("user", f"{number} {WORD * 200}"), max_tokens=1))
    await asyncio.to_thread(_forgets_hints, stack, engine, session.body())
    again = await session.turn(stack)
    assert (await decision(stack, again))["reason"] == "evicted"
    later = await session.turn(stack)
    assert (later.engine, (await decision(stack, later))["reason"]) == (again.engine, "stick")


def _forgets_hints(stack: Stack, engine: Engine, body: bytes) -> None:
    """Wait until what was just sent there counts only by the engine's events."""
    end = time.monotonic() + 20
    while hit(stack, engine, body) > len(SYSTEM) + MEDIUM_BYTES:
        assert time.monotonic() < end
        time.sleep(0.1)


async def test_an_overloaded_engine_is_left() -> None:
    """A session whose engine has far more than its share of the requests moves on."""
    with Stack(engines=3, policy={"overload_floor": 0}) as stack:
        session = Session("overload", "overload")
        first = await session.turn(stack)
        running = asyncio.ensure_future(post(stack, session.body(**LONG)))  # goes where the session is
        try:
            await until(lambda: max(loads(stack)) == 1)
            answer = await session.turn(stack)
            assert (await decision(stack, answer))["reason"] == "overloaded"
            assert answer.engine != first.engine
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_nobody_complains(stack: Stack) -> None:
    """After all of the above nothing is in the log, and every load is given back."""
    await until(lambda: not any(loads(stack)))
    assert not complaints(stack)


async def test_routers_share_where_images_are() -> None:
    """Two routers on one Redis: a session that changes between them turn by turn stays on its engine."""
    with Stack(engines=3, index=REDIS) as stack, Stack(beside=stack) as other:
        for number in range(2):
            session = Session(f"shared-{number}", "both")
            first = await session.turn(stack)
            (engine,) = [one for one in stack.engines if one.address == first.engine]
            for turn in range(1, 8):
                router = (stack, other)[turn % 2]
                await noted(router, engine, session)
                assert (await session.turn(router)).engine == engine.address


async def noted(router: Stack, engine: Engine, session: Session) -> None:
    """Wait until the engine's events, and the other router's note of what it sent, have reached this router."""
    body, least = session.body(), len(SYSTEM) + (session.turns - 1) * MEDIUM_BYTES + MEDIUM_BYTES // 2
    await until(lambda: hit(router, engine, body) > least)
