"""The alarm where nothing that is routed matches what the engines cache."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from extproc.app import mismatch_watch
from extproc.base import metrics
from extproc.base.model import Instance, Source
from extproc.index import Change
from extproc.index.memory import MemoryIndex
from extproc.prompts.renderer import PlainRenderer
from extproc.routing.pools.mismatch import ENOUGH
from extproc.routing.pools.pool import Pool


def pool(name: str, unmatched: int, source: Source = Source.EVENTS) -> Pool:
    """With so many follow-ups in a row that matched nothing."""
    found = Pool(name, PlainRenderer(), source=source, instances=[Instance("10.0.0.1:8000")])
    for _ in range(unmatched):
        found.agreement.note(1, 9, matched=False)
    return found


def shown(name: str) -> float | None:
    return metrics.REGISTRY.get_sample_value("smetric_prompt_mismatch", {"pool": name})


@asynccontextmanager
async def watched(monkeypatch: pytest.MonkeyPatch, *pools: Pool) -> AsyncIterator[None]:
    """While somebody looks all the time; yields after several looks at an index in which each pool has a block."""
    index = MemoryIndex()
    looks = 0

    async def sizes(name: str) -> dict[str, int]:
        nonlocal looks
        looks += 1
        return dict(await MemoryIndex.sizes(index, name))

    monkeypatch.setattr(index, "sizes", sizes)
    monkeypatch.setattr(mismatch_watch, "LOOK_S", 0.0)
    for one in pools:
        await index.apply([Change(one.name, "10.0.0.1:8000", add=[1])])
    task = asyncio.create_task(mismatch_watch.watch({one.name: one for one in pools}, index))
    try:
        async with asyncio.timeout(10):
            while looks < 10:
                await asyncio.sleep(0)
        yield
    finally:
        task.cancel()


async def test_the_alarm_is_shown_all_the_time_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For the pool that has it alone."""
    async with watched(monkeypatch, pool("broken", ENOUGH), pool("well", ENOUGH - 1)):
        assert (shown("broken"), shown("well")) == (1.0, 0.0)
        assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["pool broken"]


async def test_a_pool_without_events_cannot_disagree(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is routed there is all that is known."""
    async with watched(monkeypatch, pool("routed", ENOUGH, Source.ROUTED), pool("other", 0)):
        assert shown("routed") == 0.0
        assert not caplog.records
