"""docs/performance.md says how much memory a block takes: nothing here needs twice as much."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

BOUNDS = (ROOT / "docs" / "performance.md").read_text("utf-8")
INDEX = """
import asyncio, random
from extproc.app.memory import resident
from extproc.index import Change
from extproc.index.memory import MemoryIndex

async def main():
    index, rng = MemoryIndex(), random.Random(1)
    keys = [rng.getrandbits(64) for _ in range(COUNT)]
    before = resident()
    for instance in ("one", "two", "three"):
        await index.apply([Change("pool", instance, add=[key + 0 for key in keys])])
    print(resident() - before)

asyncio.run(main())
"""
MIRROR = """
from bench.events import payloads, vocabulary
from extproc.app.memory import resident
from extproc.kv_events.engines import vllm
from extproc.kv_events.mirror import Mirror

mirror = Mirror("pool", vocabulary())
before = resident()
for _, payload in payloads(COUNT):
    for event in filter(None, vllm.decode(payload).events):
        mirror.apply(event)
    while mirror.settle():
        pass
    mirror.drain()
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("program", "unit", "count"), [(INDEX, "a prompt block", 300_000), (MIRROR, "an engine block", 60_000)]
)
def test_a_block_takes_what_the_documents_say(program: str, unit: str, count: int) -> None:
    """Measured as a whole process's memory, with as much again for what allocators do."""
    stated = re.search(rf"(\d+) bytes {unit}", BOUNDS)
    assert stated is not None
    program = program.replace("COUNT", str(count))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert int(done.stdout) / count < 2 * int(stated[1])
