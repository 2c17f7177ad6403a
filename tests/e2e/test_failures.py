"""Parts die while sessions run: no request is lost that another engine could serve, and the books balance after."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from loadgen.stack.stack import REDIS, Stack
from tests.support.agents import (
    WORD,
    Answer,
    chat,
    decision,
    decisions,
    errors,
    loads,
    played,
    post,
    sessions,
    stickiness,
    until,
)


async def steadily(stack: Stack, requests: int, during: Callable[[], Awaitable[None]]) -> list[Answer]:
    """Send whole (not streamed) requests at about 40 a second, and do something in the middle of it."""
    answers: list[asyncio.Task[Answer]] = []
    for number in range(requests):
        body = chat(("system", WORD * 20), ("user", f"request {number}"), max_tokens=20)
        answers.append(asyncio.create_task(post(stack, body)))
        if number == requests // 3:
            await during()
        await asyncio.sleep(0.025)
    return await asyncio.gather(*answers)


async def test_ext_proc_dies_and_returns() -> None:
    """Without ext_proc Envoy's own policy serves every request; when it is back, it decides, and knows the caches."""
    with Stack(engines=3) as stack:

        async def kill() -> None:
            await asyncio.to_thread(stack.kill_extproc)

        answers = await steadily(stack, 120, kill)
        assert {answer.status for answer in answers} == {200}
        made = decisions(stack, 120)
        assert {} in made
        assert any(made)
        assert stack.extproc is not None
        await asyncio.to_thread(stack.extproc.restart)

        async def decides() -> bool:
            return bool(await decision(stack, await post(stack, chat(("user", "hello")))))

        async with asyncio.timeout(15):
            while not await decides():
                await asyncio.sleep(0.2)
        rows = await played(stack, sessions(6, 3))
        assert not errors(rows)
        assert stickiness(rows) == 1


async def test_the_followers_process_dies_and_returns() -> None:
    """With `memory://` a child follows the events. When it dies, nothing that it wrote is believed any more; another
    one makes the index right again by itself; and none outlives its router."""
    with Stack(engines=2) as stack:
        assert stack.extproc is not None

        def child() -> Path:
            pid = stack.extproc.pid if stack.extproc else None
            children = [Path("/proc") / one for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
            return next(one for one in children if b"follow" in (one / "cmdline").read_bytes().split(b"\0"))

        def known() -> tuple[int, set[str]]:
            instances = stack.state()["pools"]["engines"]["instances"].values()
            return sum(one["index_blocks"] for one in instances), {one["events"]["state"] for one in instances}

        await played(stack, sessions(3, 2))
        await until(lambda: known()[0] > 0)
        blocks, states = known()
        assert states == {"exact"}
        first = child()
        os.kill(int(first.name), signal.SIGKILL)
        await until(lambda: known() == (0, {"unknown"}))
        await until(lambda: known() == (blocks, {"exact"}), 60)
        second = child()
        assert second != first
        await asyncio.to_thread(stack.kill_extproc)
        await until(lambda: not second.exists(), 60)


async def test_an_engine_dies_and_returns() -> None:
    """Requests that had no answer yet are served by others, the dead engine is ejected, and comes back empty."""
    with Stack(engines=3, engine_options=["--time-scale", "2"]) as stack:
        victim = stack.engines[1]

        async def kill() -> None:
            await asyncio.to_thread(victim.kill)

        answers = await steadily(stack, 120, kill)
        assert {answer.status for answer in answers} == {200}
        assert victim.address in {answer.engine for answer in answers[:40]}
        assert victim.address not in {answer.engine for answer in answers[60:]}
        await until(lambda: not any(loads(stack)))
        await until(lambda: state(stack, victim.address) != "exact")
        await asyncio.to_thread(victim.restart)
        await until(lambda: state(stack, victim.address) == "exact")

        async def chosen() -> str | None:
            return (await post(stack, chat(("user", "hello")))).engine

        async with asyncio.timeout(20):  # EJECTION_S, and Envoy's own health check
            while await chosen() != victim.address:
                await asyncio.sleep(0.2)


def state(stack: Stack, address: str) -> str:
    state: str = stack.state()["pools"]["engines"]["instances"][address]["events"]["state"]
    return state


async def test_redis_dies_and_returns() -> None:
    """Decisions go on by load, say so, and are exact again within seconds of its return, though it lost everything."""
    with Stack(engines=3, index=REDIS) as stack:
        redis = stack.redis
        assert redis is not None

        async def kill() -> None:
            await asyncio.to_thread(redis.kill)

        answers = await steadily(stack, 120, kill)
        assert {answer.status for answer in answers} == {200}
        assert "index_unavailable" in {made.get("reason") for made in decisions(stack, 120)}
        await asyncio.to_thread(redis.restart)
        await until(lambda: all(state(stack, engine.address) == "exact" for engine in stack.engines))

        async def sticks() -> bool:
            rows = await played(stack, sessions(3, 3))
            assert not errors(rows)
            return stickiness(rows) == 1

        async with asyncio.timeout(30):
            while not await sticks():
                await asyncio.sleep(0.2)


async def test_a_clients_own_destination_changes_nothing() -> None:
    """Neither with ext_proc up nor down can a client choose its engine."""
    with Stack(engines=2) as stack:
        wanted = stack.engines[0].address
        steer = {"x-gateway-destination-endpoint": wanted}

        async def served() -> list[str | None]:
            return [(await post(stack, chat(("user", f"{i}")), headers=steer)).engine for i in range(8)]

        assert (await served()).count(wanted) == 4
        await asyncio.to_thread(stack.kill_extproc)
        assert set(await served()) == {engine.address for engine in stack.engines}


async def test_streams_finish_on_sigterm() -> None:
    """A drain lets open streams end: the request in flight is served whole, and the process exits with 0."""
    with Stack(engines=1, engine_options=["--time-scale", "4"]) as stack:
        assert stack.extproc is not None
        long = asyncio.create_task(post(stack, chat(("user", "a long one"), max_tokens=200)))
        await until(lambda: loads(stack) == [1])
        ended = await asyncio.to_thread(stack.extproc.stop, 25.0)
        assert (await long).status == 200
        assert ended == 0
