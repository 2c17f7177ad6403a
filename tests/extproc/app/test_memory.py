"""What a burst used goes back to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

from extproc.app import memory

BURST = """
import asyncio
from extproc.app import memory

async def main():
    memory.EVERY_S = 0.05
    task = asyncio.create_task(memory.give_back())
    await asyncio.sleep(0.1)
    quiet = memory.resident()
    burst = [[bytes(size) for size in (700, 3_000, 40_000)] for _ in range(4_000)]
    kept = [piece.pop() for piece in burst[::40]]  # between the others, so that nothing goes back by itself
    full = memory.resident()
    del burst
    for _ in range(100):
        await asyncio.sleep(0.1)
        if memory.resident() < quiet + (full - quiet) / 4:
            break
    print(len(kept), full - quiet, memory.resident() - quiet)
    task.cancel()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_a_burst_goes_back() -> None:
    """Small pieces lie among others that stay; most of the memory is the system's again a moment later."""
    done = subprocess.run([sys.executable, "-c", BURST], capture_output=True, text=True, check=True, timeout=60)
    _, burst, left = map(int, done.stdout.split())
    assert burst > 100 << 20
    assert left < burst / 4


def test_resident_memory_is_that_of_this_process() -> None:
    """A Python process has some megabytes."""
    assert memory.resident() > 5 << 20
