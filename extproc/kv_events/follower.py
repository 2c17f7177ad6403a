"""Which instances of a pool have their KV events followed, and by which task. `subscription.py` follows one of them.

It starts a subscription for each instance, hands an instance over to the next only when the last one has ended, and
reports where all of them stand. An instance that left is forgotten in the index.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial

from extproc.base import metrics
from extproc.base.errors import IndexLost, IndexUnavailable
from extproc.base.facts import Fact
from extproc.base.model import EventReport, Instance
from extproc.index import Change, Index
from extproc.kv_events import loose_text
from extproc.kv_events.engines import Decode, vllm
from extproc.kv_events.mirror import Mirror
from extproc.kv_events.sockets import new_context
from extproc.kv_events.stored_blocks import Vocabulary
from extproc.kv_events.subscription import INDEX_RETRY, Setup, Subscription

_log = logging.getLogger(__name__)

REPORT_EVERY = 1.0  # seconds
CHECK_EVERY = 0.1  # seconds; a connection on the same machine brings 100 MB meanwhile
FORGET_S = 2.0  # what the index may take to forget those who are no longer followed


class Follower:
    """Follows the instances of one pool. All methods must be called in the event loop."""

    def __init__(
        self,
        pool: str,
        vocabulary: Vocabulary,
        prompt_block_bytes: int,
        index: Index,
        adapter: Decode = vllm.decode,
        *,
        secret: bytes = b"",
        loose: loose_text.Vocabulary | None = None,
        tell: Callable[[str, Fact], None] = lambda _pool, _fact: None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`secret` and `loose` are the mirrors'. `tell` is called with what engines said, once the index has it, and
        must return at once."""
        self._pool = pool
        self._index = index
        self._tell = tell
        self._secret = secret
        self._context = new_context()
        self._setup = Setup(
            pool=pool,
            index=index,
            decode=adapter,
            new_mirror=lambda: Mirror(pool, vocabulary, prompt_block_bytes, loose, secret=self._secret),
            context=self._context,
            tell=tell,
            turn=asyncio.Lock(),
            clock=clock,
            wall_clock=wall_clock,
        )
        self._subscriptions: dict[str, Subscription] = {}
        self._newest: dict[str, asyncio.Task[None]] = {}  # what is done for an instance, by its name
        self._tasks: set[asyncio.Task[None]] = set()
        self._reporter: asyncio.Task[None] | None = None

    def follow(self, instances: Sequence[Instance], handed_over: Collection[str] = ()) -> None:
        """Follow exactly these from now on; those without `kv_events` are skipped.

        An instance that is left out is forgotten in the index. One whose name is in `handed_over` is not: another
        process follows it, and owns its entries.
        """
        wanted = {instance.name: instance for instance in instances if instance.kv_events is not None}
        for name, subscription in list(self._subscriptions.items()):
            if wanted.get(name) != subscription.instance:
                del self._subscriptions[name]
                gone = name not in wanted and name not in handed_over
                self._next(name, partial(self._farewell, name, subscription, gone))
        for name, instance in wanted.items():
            if name not in self._subscriptions:
                self._subscriptions[name] = subscription = Subscription(instance, self._setup)
                self._next(name, subscription.run)
        if self._reporter is None:
            self._reporter = self._start(self._report())
            self._start(self._check())

    def begin_anew(self, secret: bytes) -> None:
        """All keys have another secret from now on. Engines are asked for what they can replay."""
        self._secret = secret
        for name, subscription in self._subscriptions.items():
            self._subscriptions[name] = anew = Subscription(subscription.instance, self._setup)
            self._next(name, anew.run)

    def reports(self) -> Mapping[str, EventReport]:
        """Where each instance stands, by its name."""
        return {name: subscription.report for name, subscription in self._subscriptions.items()}

    async def end(self) -> None:
        """Follow nobody any more, and have their entries forgotten, if the index answers soon; then stop."""
        self.follow(())
        if self._newest:
            await asyncio.wait(list(self._newest.values()), timeout=FORGET_S)
        await self.close()

    async def close(self) -> None:
        """Stop. The entries of the instances stay in the index."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._subscriptions.clear()
        self._context.destroy(linger=0)

    def _next(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Stop what is done for an instance, and do this."""
        last = self._newest.get(name)
        if last is not None:
            last.cancel()
        self._newest[name] = self._start(_after(last, work))

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _farewell(self, name: str, subscription: Subscription, gone: bool) -> None:
        subscription.remove_metrics()
        if gone:
            metrics.forget_instance(self._pool, name)
            self._tell(self._pool, Fact(name, lost=True))
        while gone:
            try:
                await self._index.apply([Change(self._pool, name, forget=True)])
                gone = False
            except IndexUnavailable:
                await asyncio.sleep(INDEX_RETRY)
        del self._newest[name]

    async def _check(self) -> None:
        while True:
            for subscription in self._subscriptions.values():
                subscription.check()
            await asyncio.sleep(CHECK_EVERY)

    async def _report(self) -> None:
        while True:
            for subscription in self._subscriptions.values():
                subscription.show()
            try:
                await self._index.report(self._pool, self.reports())
            except IndexLost as lost:
                for name in lost.instances & self._subscriptions.keys():
                    self._subscriptions[name].tell_all()
            except IndexUnavailable:
                pass  # the index counts and logs that itself
            except Exception:
                metrics.EXCEPTIONS.labels("events").inc()
                _log.exception("a bug in reporting on the events of pool %s", self._pool)
            await asyncio.sleep(REPORT_EVERY)


async def _after(last: asyncio.Task[None] | None, work: Callable[[], Awaitable[None]]) -> None:
    if last is not None:
        await asyncio.wait([last])
    await work()
