"""A loop that is held up shows it, and by what."""

from __future__ import annotations

import asyncio
import time

import pytest

from extproc.app import stalls
from extproc.base import metrics

HELD_S = 0.3


def total(cause: str) -> float:
    """Seconds observed so far."""
    return metrics.REGISTRY.get_sample_value("smetric_loop_stall_seconds_sum", {"cause": cause}) or 0.0


def compute() -> None:
    """Use the processor, on this thread."""
    until = time.thread_time() + HELD_S
    while time.thread_time() < until:
        pass


@pytest.mark.parametrize(("cause", "hold"), [("work", compute), ("wait", lambda: time.sleep(HELD_S))])
async def test_a_stall_is_measured(cause: str, hold: object) -> None:
    """Whether the loop's own work held it, or the process had no processor: what the timer missed is in that cause."""
    watching = asyncio.create_task(stalls.watch())
    await asyncio.sleep(3 * stalls.EVERY_S)
    before = total(cause)
    assert callable(hold)
    hold()
    await asyncio.sleep(3 * stalls.EVERY_S)
    watching.cancel()
    assert total(cause) - before >= HELD_S - 2 * stalls.EVERY_S
