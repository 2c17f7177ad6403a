"""Memory goes back to the system after a burst: of large bodies, of an engine's flood, of a cache that was cleared.

glibc keeps for ever what is freed between two pieces that are still used: a process that once held a gigabyte seems to
need it from then on, and a container's limit counts it. So large pieces get a mapping of their own, which goes when
they are freed, and the rest is trimmed now and then. Does nothing where the C library is another one. Refuses to know
what the memory was used for.
"""

from __future__ import annotations

import asyncio
import ctypes
from pathlib import Path
from typing import Final

# By itself glibc raises this bound to 32 MiB, as soon as a piece so large is freed. Most bodies are below it: for them
# a mapping of their own, with a page fault for every 4 KiB, would cost more than it gives.
LARGE: Final = 1 << 20  # bytes
_M_MMAP_THRESHOLD: Final = -3  # malloc.h
EVERY_S: Final = 5.0
GROWN: Final = 16 << 20  # bytes that a process grew by since the last look: less is not worth a trim

_STATM: Final = Path("/proc/self/statm")
_PAGE: Final = 4096


async def give_back() -> None:
    """Until it is cancelled."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_trim") or not _STATM.exists():
        return
    libc.mallopt(_M_MMAP_THRESHOLD, LARGE)
    settled = resident()
    while True:
        await asyncio.sleep(EVERY_S)
        if resident() > settled + GROWN:
            # In a thread, since it takes 0.1 ms for each megabyte that goes back.
            await asyncio.to_thread(libc.malloc_trim, 0)
            settled = resident()
        settled = min(settled, resident())


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(_STATM.read_text().split()[1]) * _PAGE
