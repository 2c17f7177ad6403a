"""An instance in real time: steps last as long as the model says, scaled; requests await their tokens.

The only owner of the clock. A step that ends late does not delay the next one: while there is work, the instance's
time runs on from the planned end, so a busy machine adds jitter but takes no capacity away.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from loadgen.engine.block_cache import Block
from loadgen.engine.instance import Event, Instance
from loadgen.engine.publisher import TokenRequest

CATCH_UP = 1.0  # seconds that the instance may lie behind the clock before it gives them up


@dataclass(eq=False, slots=True, kw_only=True)
class LiveRequest(TokenRequest):
    """A request that somebody waits for: it puts itself into `progress` when it has new tokens. Requests may share one.

    The others belong to `transfer.py`: the KV of a prompt may come from another engine, or stay for one.
    """

    progress: asyncio.Queue[LiveRequest] = field(default_factory=asyncio.Queue)
    loaded: int = 0  # leading prompt tokens whose KV another engine computed ...
    remote_hit: int = 0  # ... and how many of them that one had cached
    export: bool = False  # keep the blocks after the end ...
    exported: list[Block] | None = None  # ... and these they are


Publish = Callable[[Sequence[Event[LiveRequest]]], Awaitable[None]]


class Engine:
    """Runs an instance. `time_scale` multiplies every duration: 0.1 is ten times as fast as the model."""

    def __init__(self, instance: Instance[LiveRequest], publish: Publish, time_scale: float = 1.0) -> None:
        self.instance = instance
        self._publish = publish
        self._time_scale = time_scale
        self._work = asyncio.Event()

    async def run(self) -> None:
        """Step for ever."""
        clock = asyncio.get_running_loop().time
        now = clock()
        while True:
            step = self.instance.begin(now)
            if step is None:
                self._work.clear()
                await self._work.wait()
                now = clock()
                continue
            ends = now + (step.ends - now) * self._time_scale
            await asyncio.sleep(max(0.0, ends - clock()))
            sampled = self.instance.finish(step)
            await self._publish(step.events)
            for request in sampled:
                request.progress.put_nowait(request)
            now = max(ends, clock() - CATCH_UP)

    async def generate(self, requests: Sequence[LiveRequest]) -> AsyncGenerator[tuple[int, int], None]:
        """Yield a request's place and how many tokens of its reply there are, each time there are more, until all are.

        They share a queue (`progress`). Leaving the iteration early, by `aclose` or cancellation, aborts them.

        Raises:
            ValueError: they do not fit into the cache.
        """
        await asyncio.sleep(self.instance.profile.overhead * self._time_scale)
        places = {id(request): place for place, request in enumerate(requests)}
        progress = requests[0].progress
        try:
            for request in requests:
                self.instance.submit(request)
            self._work.set()
            told = [0] * len(requests)
            while any(count < request.reply for count, request in zip(told, requests, strict=True)):
                changed = {places[id(await progress.get())]}
                while not progress.empty():
                    changed.add(places[id(progress.get_nowait())])
                for place in sorted(changed):
                    told[place] = requests[place].sampled
                    yield place, told[place]
        finally:
            for request in requests:
                self.instance.abort(request)
