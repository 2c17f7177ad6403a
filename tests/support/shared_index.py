"""An index in a real Redis, opened for a test, and what to write to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from extproc.base.errors import IndexLost, IndexUnavailable
from extproc.index import Change
from extproc.index.redis import RedisIndex

CHAIN = tuple(range(1000, 1200))

ADD = [Change("pool", "a", forget=True, add=CHAIN)]


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[RedisIndex]:
    index = RedisIndex.from_url(url)
    try:
        yield index
    finally:
        await index.close()


async def until_it_works(call: Callable[[], Awaitable[Any]]) -> Any:
    """The result of the first attempt that does not find Redis away."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await call()
            except IndexLost:
                raise
            except IndexUnavailable:
                await asyncio.sleep(0.02)
