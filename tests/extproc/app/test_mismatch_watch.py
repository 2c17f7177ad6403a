"""The regular look at what prompts and caches have to do with each other."""

from __future__ import annotations

import asyncio

import pytest

from extproc.app import mismatch_watch
from extproc.index import Change
from extproc.index.memory import MemoryIndex
from extproc.prompts.renderer import PlainRenderer
from extproc.routing.pools.pool import Pool


async def test_an_adapter_with_the_name_of_the_base_model_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names pool, instance and adapter, however often it is looked at."""
    monkeypatch.setattr(mismatch_watch, "LOOK_S", 0.0)
    index, pool = MemoryIndex(), Pool("llama", PlainRenderer(), frozenset({"base"}))
    await index.apply([Change("llama", "10.0.0.3:8000", adapters=["base", "fine"])])
    task = asyncio.create_task(mismatch_watch.watch([pool], index))
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    (record,) = caplog.records
    assert "pool llama: 10.0.0.3:8000 announces a LoRA adapter 'base'" in record.getMessage()
