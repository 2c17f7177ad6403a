"""Processes that read large bodies: answers, budgets, deaths. The children are real; what they do is a script here."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from extproc.app import readers
from extproc.app.readers import OverBudget, Readers

# Answers with the length of the body, sleeps where the head says so, and dies where it says that.
CHILD = """
import os, socket, struct, time
lengths = struct.Struct("<II")
stream = socket.socket(fileno=0).makefile("rwb")
while frame := stream.read(8):
    head, body = (stream.read(n) for n in lengths.unpack(frame))
    if head == b"die":
        os._exit(1)
    if head == b"sleep":
        time.sleep(60)
    answer = str(os.getpid() if head == b"pid" else len(body)).encode()
    stream.write(lengths.pack(len(answer), 0) + answer)
    stream.flush()
"""


@asynccontextmanager
async def running(**options: float) -> AsyncIterator[Readers]:
    pool = Readers([sys.executable, "-c", CHILD], b"setup", **{"budget_s": 20.0, **options})  # type: ignore[arg-type]
    try:
        yield pool
    finally:
        await pool.close()


async def asked(pool: Readers, body: bytes, head: bytes = b"") -> bytes:
    return await pool.ask(lambda _: head, body)


async def test_a_body_is_answered_by_another_process() -> None:
    """A question of many megabytes goes over whole, and so do several at a time, the shortest first."""
    async with running() as pool:
        sizes = [0, 5_000_000, 1, 70_000]
        answers = await asyncio.gather(*(asked(pool, bytes(size)) for size in sizes))
    assert [int(answer) for answer in answers] == sizes


async def test_the_shortest_goes_first() -> None:
    """Who sends the longest bodies waits for the others."""
    order: list[int] = []
    async with running() as pool:
        await asked(pool, b"warm")

        async def one(size: int) -> None:
            await asked(pool, bytes(size))
            order.append(size)

        await asyncio.gather(*(one(size) for size in (3_000_000, 2_000_000, 10, 1_000_000)))
    assert order == [10, 1_000_000, 2_000_000, 3_000_000]


async def test_what_is_over_its_budget_costs_no_other_its_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that is not read in time raises; a process that hangs over it is replaced, and later bodies are read."""
    monkeypatch.setattr(readers, "HANGS_S", 0.3)
    async with running() as pool:
        assert await asked(pool, b"warm") == b"4"
        pool._budget_s = 0.1
        with pytest.raises(OverBudget):
            await asked(pool, b"x", b"sleep")
        pool._budget_s = 20.0
        assert await asked(pool, b"next") == b"4"


async def test_a_process_that_dies_costs_one_request() -> None:
    """A body that kills its reader raises at once, and the next one has a new reader."""
    async with running() as pool:
        with pytest.raises(OverBudget):
            await asked(pool, b"x", b"die")
        assert await asked(pool, b"next") == b"4"


async def test_one_that_is_killed_is_replaced() -> None:
    """From outside, while it has nothing to do: at most the next request is in time to notice."""
    async with running() as pool:
        os.kill(int(await asked(pool, b"", b"pid")), signal.SIGKILL)
        with suppress(OverBudget):
            await asked(pool, b"at once")
        assert await asked(pool, b"next") == b"4"


async def test_what_waits_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound a body is refused at once; what was waiting is still answered, and then there is room again."""
    monkeypatch.setattr(readers, "WAITING_BYTES", 1000)
    async with running() as pool:
        waiting = asyncio.create_task(asked(pool, bytes(900)))
        await asyncio.sleep(0)
        with pytest.raises(OverBudget):
            await asked(pool, bytes(200))
        assert await waiting == b"900"
        assert await asked(pool, bytes(1000)) == b"1000"


async def test_a_cancelled_question_leaves_nothing_behind() -> None:
    """A client that goes away while its body waits gives its room back, and the reader is not confused by it."""
    async with running() as pool:
        assert await asked(pool, b"warm") == b"4"
        gone = [asyncio.create_task(asked(pool, bytes(5_000_000))) for _ in range(4)]
        await asyncio.sleep(0.01)
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        assert pool._bytes == 0
        assert await asked(pool, b"next") == b"4"
