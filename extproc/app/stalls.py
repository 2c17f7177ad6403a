"""How long the event loop is held up: a timer that is due a hundred times a second, and how late it comes.

Everything of a process waits for its loop: decisions, health answers, events. So this is the first thing to look at
where decisions are slow, and the promise that no client can hold up another's decision is measured by it. A delay has
two parts: `work`, for which the loop's own thread had the processor, and `wait`, for which it had not: others had it,
or a limit of the container's CPU did its work. Refuses to know what the loop works on.
"""

from __future__ import annotations

import asyncio
import time

from extproc.base import metrics

EVERY_S = 0.01  # a stall may begin just after the timer, and is then measured so much too short


async def watch() -> None:
    """Until it is cancelled."""
    work, wait = (metrics.LOOP_STALL_SECONDS.labels(cause) for cause in ("work", "wait"))
    while True:
        began, worked = time.monotonic(), time.thread_time()
        await asyncio.sleep(EVERY_S)
        late = max(0.0, time.monotonic() - began - EVERY_S)
        busy = min(late, time.thread_time() - worked)
        work.observe(busy)
        wait.observe(late - busy)
