"""Several routers on one Redis: sessions stay, loads count for all; what dies, hangs or forgets costs no request."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections import Counter
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis import Redis

from loadgen.stack.stack import REDIS, Stack
from tests.support.agents import WORD, Answer, chat, decision, decisions, loads, post, until
from tests.support.redis_server import BINARIES
from tests.support.routers import all_followed, directly, follower_of, hit

LONG = {"max_tokens": 4_000, "ignore_eos": True}  # half a minute: longer than any test waits
STOP_S = 4.0  # `python -m bench.outage` stops Redis for 30 s


class Conversation:
    """One agent's session, turn after turn through any router."""

    def __init__(self, name: str) -> None:
        self._history = [("system", f"{name} {WORD * 30}")]
        self._turns = 0

    async def turn(self, stack: Stack, **fields: Any) -> Answer:
        """Send the next turn through this router."""
        self._history.append(("user", f"turn {self._turns}: {WORD * 5}"))
        self._turns += 1
        answer = await post(stack, chat(*self._history, **fields))
        assert answer.status == 200
        self._history.append(("assistant", answer.json["choices"][0]["message"]["content"] or ""))
        return answer

    def next(self, **fields: Any) -> bytes:
        """The body of another turn, which changes nothing here."""
        return chat(*self._history, ("user", WORD), **fields)


@asynccontextmanager
async def in_flight(sent: Sequence[Awaitable[Answer]]) -> Any:
    """Requests that run within the block and are given up at its end."""
    tasks = [asyncio.ensure_future(one) for one in sent]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# So that a test decides what runs where.
NEVER_SHED = {"overload": 100}


@pytest.fixture(scope="module", params=BINARIES)
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """A router with a Redis of each version that tests may stop."""
    with Stack(4, index=REDIS, redis_program=BINARIES[request.param], policy=NEVER_SHED) as running:
        yield running


@pytest.fixture(scope="module")
def other(stack: Stack) -> Iterator[Stack]:
    """A second router behind an Envoy of its own, on the same engines and the same Redis."""
    with Stack(beside=stack, policy=NEVER_SHED) as running:
        yield running


# The first tests have one router alone; what they do to Redis is no different from version to version.
once = pytest.mark.parametrize("stack", [list(BINARIES)[-1]], indirect=True)


@once
async def test_a_dead_follower_is_started_again(stack: Stack) -> None:
    """Also where there is no other router: `serve` starts it anew, and it takes over its predecessor's instances."""
    await all_followed(stack)
    before = follower_of(stack)
    os.kill(before, signal.SIGKILL)
    await all_followed(stack)
    assert follower_of(stack) != before


async def steadily(stack: Stack, seconds: float, answers: list[Answer], conversations: Sequence[Conversation]) -> None:
    """Let conversations go on for so long, turn after turn."""
    until_s = asyncio.get_running_loop().time() + seconds

    async def go_on(conversation: Conversation) -> None:
        while asyncio.get_running_loop().time() < until_s:
            answers.append(await conversation.turn(stack))
            await asyncio.sleep(0.2)

    await asyncio.gather(*(go_on(conversation) for conversation in conversations))


async def sticks(stack: Stack) -> bool:
    """Whether new sessions stay on their engine, each for a reason."""
    reasons: Counter[str | None] = Counter()
    for _ in range(3):
        conversation = Conversation(uuid.uuid4().hex)
        for _ in range(2):
            reasons[(await decision(stack, await conversation.turn(stack))).get("reason")] += 1
    return reasons == {"first_turn": 3, "stick": 3}


@once
async def test_redis_hangs(stack: Stack) -> None:
    """Every request is served meanwhile, by load; when Redis answers again, the index is right, with what it missed."""
    redis = stack.redis
    assert redis is not None
    assert redis.pid is not None
    answers: list[Answer] = []
    before = len(decisions(stack, 0))
    load = asyncio.create_task(steadily(stack, STOP_S + 2, answers, [Conversation(f"hang {n}") for n in range(6)]))
    await asyncio.sleep(1)
    missed = chat(("system", f"missed {WORD * 20}"), ("user", "hello"))
    os.kill(redis.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(1)
        for engine in stack.engines:
            await directly(engine, missed)
        await asyncio.sleep(STOP_S - 1)
    finally:
        os.kill(redis.pid, signal.SIGCONT)
    await until(lambda: all(hit(stack, engine, missed) for engine in stack.engines))
    await load
    assert {answer.status for answer in answers} == {200}
    reasons = Counter(made.get("reason") for made in decisions(stack, before + len(answers))[before:])
    assert reasons["index_unavailable"] > 10
    assert set(reasons) <= {"first_turn", "stick", "evicted", "index_unavailable"}
    await all_followed(stack)
    assert await sticks(stack)


@once
async def test_redis_is_flushed(stack: Stack) -> None:
    """The index is filled again from what the followers know, with no word from the engines; sessions stay."""
    conversation = Conversation("flushed")
    home = (await conversation.turn(stack)).engine
    body = chat(("system", f"flushed {WORD * 20}"), ("user", "hello"))
    for engine in stack.engines:
        await directly(engine, body)
    await until(lambda: all(hit(stack, engine, body) for engine in stack.engines))
    with Redis.from_url(stack.index_url.partition("?")[0]) as redis:
        redis.flushall()
    await until(lambda: all(hit(stack, engine, body) for engine in stack.engines))
    assert (await conversation.turn(stack)).engine == home
    assert await sticks(stack)


@once
async def test_the_secret_of_the_index_is_replaced(stack: Stack) -> None:
    """All processes take the other one within seconds, engines are asked again, no request is lost, sessions stay."""
    name, answers = "smetric:1:secret", list[Answer]()
    with Redis.from_url(stack.index_url.partition("?")[0]) as redis:
        assert len(redis.get(name)) == 16
        load = asyncio.create_task(steadily(stack, 4, answers, [Conversation(f"secret {n}") for n in range(3)]))
        await asyncio.sleep(1)
        redis.set(name, b"another secret")
        await load
    assert {answer.status for answer in answers} == {200}
    await all_followed(stack)
    assert await sticks(stack)


@once
async def test_an_engine_restarts_while_the_router_is_down(stack: Stack) -> None:
    """What the engine lost is forgotten although nobody was there to see it; what the others have is still known."""
    body = chat(("system", f"restarted {WORD * 20}"), ("user", "hello"))
    for engine in stack.engines:
        await directly(engine, body)
    await until(lambda: all(hit(stack, engine, body) for engine in stack.engines))
    assert stack.extproc is not None
    await asyncio.to_thread(stack.kill_extproc)
    await asyncio.to_thread(stack.engines[0].kill)
    await asyncio.to_thread(stack.engines[0].restart)
    await asyncio.to_thread(stack.extproc.restart)
    await until(lambda: [bool(hit(stack, engine, body)) for engine in stack.engines] == [False, True, True, True])


@once
async def test_a_clear_is_known_with_the_next_step(stack: Stack) -> None:
    """An idle engine that empties its cache says so only when it computes again: then nothing of it counts."""
    body = chat(("system", f"cleared {WORD * 20}"), ("user", "hello"))
    engine = stack.engines[1]
    await directly(engine, body)
    await until(lambda: hit(stack, engine, body))
    assert await asyncio.to_thread(engine.reset_cache)
    await directly(engine, chat(("user", "a step")))
    await until(lambda: not hit(stack, engine, body))


async def test_sessions_that_alternate_between_routers_stay(stack: Stack, other: Stack) -> None:
    """No turn of a session goes through the router of the turn before, and yet all go to the same engine."""
    before = [len(decisions(router, 0)) for router in (stack, other)]

    async def alternate(number: int) -> set[str | None]:
        conversation = Conversation(f"alternating {number}")
        served = set()
        for turn in range(6):
            served.add((await conversation.turn((stack, other)[(number + turn) % 2])).engine)
            await asyncio.sleep(0.1)  # an agent's tool
        return served

    served = await asyncio.gather(*(alternate(number) for number in range(8)))
    assert [len(engines) for engines in served] == [1] * 8
    assert len(set.union(*served)) == 4
    for router, first in zip((stack, other), before, strict=True):
        reasons = Counter(made["reason"] for made in decisions(router, first + 24)[first:])
        assert reasons == {"first_turn": 4, "stick": 20}


async def test_simultaneous_first_turns_do_not_herd(stack: Stack, other: Stack) -> None:
    """Three engines are busy for one router; first turns through both at once fill up the idle one, and no more."""
    homes: dict[str | None, Conversation] = {}
    while len(homes) < 4:
        conversation = Conversation(f"herd {len(homes)}")
        homes[(await conversation.turn(stack)).engine] = conversation
    idle = stack.engines[0].address
    await until(lambda: not any(loads(stack) + loads(other)))
    forks = [home.next(**LONG) for engine, home in homes.items() if engine != idle for _ in range(6)]
    async with in_flight([post(stack, fork) for fork in forks]):
        await until(lambda: sorted(loads(other)) == [0, 6, 6, 6])
        firsts = [chat(("user", f"{number} {WORD}"), **LONG) for number in range(14)]
        async with in_flight([post((stack, other)[number % 2], body) for number, body in enumerate(firsts)]):
            await until(lambda: sum(loads(stack)) == 32 and loads(other) == loads(stack))
            spread = dict(zip([engine.address for engine in stack.engines], loads(stack), strict=True))
            assert spread[idle] in range(6, 12)
            assert min(spread.values()) >= 6
    await until(lambda: not any(loads(stack) + loads(other)))


async def test_a_dead_followers_instances_are_followed_by_the_other(stack: Stack, other: Stack) -> None:
    """Each router follows its share of the engines; when one follower dies, the index is soon up to date again."""
    await all_followed(stack)
    os.kill(follower_of(stack), signal.SIGKILL)
    await all_followed(other)
    assert [(await Conversation("takeover").turn(router)).status for router in (stack, other)] == [200, 200]


async def test_a_dead_routers_loads_expire(stack: Stack, other: Stack) -> None:
    """Requests that went through it run on, unseen; the router that is left no longer counts them."""
    bodies = [chat(("user", f"{number} {WORD}"), **LONG) for number in range(6)]
    async with in_flight([post(other, body) for body in bodies]) as sent:
        await until(lambda: sum(loads(stack)) == 6)
        await asyncio.to_thread(other.kill_extproc)
        await until(lambda: not any(loads(stack)))
        assert not any(request.done() for request in sent)
