"""Following the KV events of a pool's instances: ZMQ in, `index.Change` out. The only file that speaks ZMQ.

It moves bytes; `feed.py` says what they mean. What it guards:

- Decisions may share the loop. All instances of a pool take turns in slices of `SLICE` seconds.
- Memory is bounded. Sockets hold few messages and the engine keeps the rest; a mirror has a limit of its own.
- The index may be slow, away or emptied. Then the mirror goes on, changes are dropped, and when the index is back it is
  told everything that the mirror holds; until then the instance is `unknown`.
- Nothing ends the following of an instance. What cannot be used is counted, and logged once for each cause; a bug is
  logged, and the instance begins anew.

An address with the host `*`, `0.0.0.0` or `[::]` is one that we bind and the engine connects to: one port an instance.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

import zmq
from zmq.utils.monitor import parse_monitor_message

from extproc.base import metrics
from extproc.base.errors import IndexLost, IndexUnavailable
from extproc.base.model import EventReport, Instance, Knowledge
from extproc.index import Change, Index
from extproc.kv_events.engines import Decode, frames, vllm
from extproc.kv_events.feed import Feed
from extproc.kv_events.mirror import Mirror, Vocabulary

_log = logging.getLogger(__name__)

SLICE = 0.002  # seconds of work until others get their turn
MESSAGES = 64  # that wait in a socket of ours; the engine's own queue holds a hundred thousand more
REPLAYED_MESSAGES = 10_000  # a ROUTER drops what its peer does not take: let a whole replay come at once
LARGEST_MESSAGE = 64 * 1024 * 1024  # bytes; ZMQ ends a connection that sends more
HEARTBEAT_MS = 5000  # a peer that is silent three times so long is gone, although TCP does not say so
LONGEST_RECONNECT_MS = 1000  # between attempts to connect
REPORT_EVERY = 1.0  # seconds
INDEX_RETRY = 1.0  # seconds until an index that failed is tried again
KEYS_AT_ONCE = 4096  # when the index is told everything
RESTART = 1.0  # seconds until a line begins anew after a bug, doubled each time
LONGEST_RESTART = 60.0

_BOUND = ("tcp://*:", "tcp://0.0.0.0:", "tcp://[::]:")


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
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._pool = pool
        self._index = index
        self._context = zmq.Context()
        self._context.max_sockets = self._context.get(zmq.SOCKET_LIMIT)  # three an instance; the default ends at 341
        self._setup = _Setup(
            pool=pool,
            index=index,
            decode=adapter,
            new_mirror=lambda: Mirror(pool, vocabulary, prompt_block_bytes),
            context=self._context,
            turn=asyncio.Lock(),
            clock=clock,
            wall_clock=wall_clock,
        )
        self._lines: dict[str, _Line] = {}
        self._newest: dict[str, asyncio.Task[None]] = {}  # what is done for an instance, by its name
        self._tasks: set[asyncio.Task[None]] = set()
        self._reporter: asyncio.Task[None] | None = None

    def follow(self, instances: Sequence[Instance], handed_over: Collection[str] = ()) -> None:
        """Follow exactly these from now on; those without `kv_events` are skipped.

        One that is left out is forgotten in the index, unless its name is in `handed_over`: then another process
        follows it, and what the index says of it is that one's.
        """
        wanted = {instance.name: instance for instance in instances if instance.kv_events is not None}
        for name, line in list(self._lines.items()):
            if wanted.get(name) != line.instance:
                del self._lines[name]
                gone = name not in wanted and name not in handed_over
                self._next(name, partial(self._farewell, name, line, gone))
        for name, instance in wanted.items():
            if name not in self._lines:
                self._lines[name] = line = _Line(instance, self._setup)
                self._next(name, line.run)
        if self._reporter is None:
            self._reporter = self._start(self._report())

    def reports(self) -> Mapping[str, EventReport]:
        """Where each instance stands, by its name."""
        return {name: line.report for name, line in self._lines.items()}

    async def close(self) -> None:
        """Stop. What the index says of the instances stays."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._lines.clear()
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

    async def _farewell(self, name: str, line: _Line, gone: bool) -> None:
        line.remove_metrics()
        while gone:
            try:
                await self._index.apply([Change(self._pool, name, forget=True)])
                gone = False
            except IndexUnavailable:
                await asyncio.sleep(INDEX_RETRY)
        del self._newest[name]

    async def _report(self) -> None:
        while True:
            try:
                await self._index.report(self._pool, self.reports())
            except IndexLost as lost:
                for name in lost.instances & self._lines.keys():
                    self._lines[name].tell_all()
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


@dataclass(frozen=True, slots=True)
class _Setup:
    """What all lines of a pool share."""

    pool: str
    index: Index
    decode: Decode
    new_mirror: Callable[[], Mirror]
    context: zmq.Context[zmq.Socket[bytes]]
    turn: asyncio.Lock
    clock: Callable[[], float]
    wall_clock: Callable[[], float]


class _Line:
    """One instance's sockets, and the feed between them and the index."""

    def __init__(self, instance: Instance, setup: _Setup) -> None:
        self.instance = instance
        self._setup = setup
        self._address = str(instance.kv_events)
        self._labels = (setup.pool, instance.name)
        self._logged: set[str] = set()
        self._shown: Knowledge | None = None
        self._woken = asyncio.Event()
        self._begin()

    def _begin(self) -> None:
        can_replay = self.instance.kv_replay is not None
        self._feed = Feed(self._setup.decode, self._setup.new_mirror(), rank=self.instance.rank, can_replay=can_replay)
        self._live: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._replay: zmq.Socket[bytes] | None = None
        self._connected = False
        self.tell_all()

    @property
    def report(self) -> EventReport:
        known = Knowledge.UNKNOWN if self._untold else self._feed.knowledge
        return EventReport(known, self._feed.sequence, self._feed.lag)

    def tell_all(self) -> None:
        """The index does not have what the mirror holds, or we do not know: tell it everything."""
        self._untold = True
        self._tell_at = self._setup.clock()
        self._woken.set()

    async def run(self) -> None:
        """Follow until cancelled."""
        pause = RESTART
        while True:
            started = self._setup.clock()
            try:
                with self._sockets():
                    await self._follow()
            except zmq.ZMQError as error:
                self._complain("socket", f"{self._address}: {error}")
            except Exception:
                metrics.EXCEPTIONS.labels("events").inc()
                _log.exception("a bug in following %s of pool %s; it begins anew", self.instance.name, self._setup.pool)
            self._begin()
            self._show()
            if self._setup.clock() - started > LONGEST_RESTART:
                pause = RESTART
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_RESTART)

    async def _follow(self) -> None:
        while True:
            async with self._setup.turn:
                more = self._work(self._setup.clock() + SLICE)
            await self._tell()
            self._show()
            if more:
                await asyncio.sleep(0)
            else:
                await self._readable()

    def _work(self, until: float) -> bool:
        """Receive and apply until then; whether there may be more."""
        feed = self._feed
        while (now := self._setup.clock()) < until:
            if feed.step(self._setup.wall_clock()):
                if feed.replay is not None:
                    self._ask(feed.replay)
                    feed.replay = None
            else:
                heard = self._receive(now)
                # After what has come, because it may be what was waited for.
                if not feed.tick(now) and not heard:
                    return False
        return True

    def _receive(self, now: float) -> bool:
        """Take what has come: news of the connection first, then a message of each socket. Whether there was any."""
        heard = False
        while (news := _take(self._monitor)) is not None:
            heard = True
            self._connected = parse_monitor_message(news)["event"] != zmq.EVENT_DISCONNECTED
            if not self._connected:
                self._feed.disconnected(now)
                while _take(self._live) is not None:
                    pass  # of a connection that is gone; the next one begins with a replay of all there is
            else:
                self._feed.connected(now)
        if (message := _take(self._live)) is not None:
            heard = True
            self._feed.heard(message, now)
        if (message := _take(self._replay)) is not None:
            heard = True
            if self._feed.replayed(message, now):
                self._end_replay()
        return heard

    async def _tell(self) -> None:
        """Bring the index up to date."""
        delta = self._feed.drain()
        changes: Iterable[Change] = ()
        if self._untold:
            if self._setup.clock() >= self._tell_at:
                changes = self._everything()
        elif delta.forget or delta.remove or delta.add or delta.adapters:
            changes = [Change(*self._labels, delta.forget, delta.remove, delta.add, delta.adapters)]
        try:
            for change in changes:
                await self._setup.index.apply([change])
        except IndexUnavailable:
            self.tell_all()
            self._tell_at += INDEX_RETRY

    def _everything(self) -> Iterator[Change]:
        self._untold = False  # until something goes wrong
        held, adapters = self._feed.everything()
        yield Change(*self._labels, forget=True, adapters=adapters)
        for start in range(0, len(held), KEYS_AT_ONCE):
            yield Change(*self._labels, add=held[start : start + KEYS_AT_ONCE])

    # Sockets

    @contextmanager
    def _sockets(self) -> Iterator[None]:
        try:
            self._live = live = self._setup.context.socket(zmq.SUB)
            self._monitor = live.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
            _configure(live, MESSAGES)
            live.subscribe(b"")
            if self._address.startswith(_BOUND):
                live.bind(self._address)
            else:
                live.connect(self._address)
            yield
        finally:
            if self._live is not None:
                self._live.disable_monitor()
            for socket in (self._monitor, self._live, self._replay):
                if socket is not None:
                    socket.close(linger=0)

    def _ask(self, start: int) -> None:
        self._end_replay()
        self._replay = self._setup.context.socket(zmq.DEALER)
        _configure(self._replay, REPLAYED_MESSAGES)
        self._replay.connect(str(self.instance.kv_replay))
        self._replay.send_multipart(frames.request(start), zmq.DONTWAIT)

    def _end_replay(self) -> None:
        if self._replay is not None:
            self._replay.close(linger=0)
            self._replay = None

    async def _readable(self) -> None:
        """Wait until a socket has something, or time is up for what waits for it."""
        sockets = [socket for socket in (self._monitor, self._live, self._replay) if socket is not None]
        times = (self._feed.deadline, self._tell_at if self._untold else None)
        due = min((time for time in times if time is not None), default=None)
        self._woken.clear()
        loop = asyncio.get_running_loop()
        for socket in sockets:
            loop.add_reader(socket.fileno(), self._woken.set)
        try:
            # The descriptor tells of changes only, so look once after watching it.
            if not any(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN for socket in sockets):
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if due is None else max(0.0, due - self._setup.clock())):
                        await self._woken.wait()
        finally:
            for socket in sockets:
                loop.remove_reader(socket.fileno())

    # For operators

    def _show(self) -> None:
        """Bring metrics and log up to date."""
        feed = self._feed
        for kind, events in feed.events.items():
            metrics.EVENTS.labels(*self._labels, kind).inc(events)
        for (kind, tier), blocks in feed.blocks.items():
            metrics.EVENT_BLOCKS.labels(*self._labels, kind, tier).inc(blocks)
        for outcome, gaps in feed.gaps.items():
            metrics.EVENT_GAPS.labels(*self._labels, outcome).inc(gaps)
        for trouble in feed.troubles:
            self._complain(*trouble)
        for counted in (feed.events, feed.blocks, feed.gaps, feed.troubles):
            counted.clear()
        metrics.EVENT_LAG_SECONDS.labels(*self._labels).set(feed.lag)
        state = self.report.state
        if state is not self._shown:
            lost = state is Knowledge.UNKNOWN and self._shown is not None and not self._connected
            self._shown = state
            for each in Knowledge:
                metrics.EVENT_STATE.labels(*self._labels, each).set(each is state)
            if lost:
                _log.warning(
                    "instance %s, pool %s: the connection to its events is lost; "
                    "its cache counts as empty until it is back",
                    self.instance.name,
                    self._setup.pool,
                )
            else:
                _log.info("events of %s, pool %s: %s", self.instance.name, self._setup.pool, state)

    def _complain(self, cause: str, detail: str, times: int = 1) -> None:
        metrics.EVENT_ERRORS.labels(*self._labels, cause).inc(times)
        if cause not in self._logged:
            self._logged.add(cause)
            _log.warning("events of %s, pool %s: %s (said once)", self.instance.name, self._setup.pool, detail)

    def remove_metrics(self) -> None:
        """An instance that is gone has no state and no lag."""
        with suppress(KeyError):
            metrics.EVENT_LAG_SECONDS.remove(*self._labels)
        for each in Knowledge:
            with suppress(KeyError):
                metrics.EVENT_STATE.remove(*self._labels, each)


def _configure(socket: zmq.Socket[bytes], messages: int) -> None:
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.RECONNECT_IVL_MAX, LONGEST_RECONNECT_MS),
        (zmq.RCVHWM, messages),
        (zmq.MAXMSGSIZE, LARGEST_MESSAGE),
        (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
        (zmq.HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_MS),
        (zmq.IPV6, 1),
    ):
        socket.setsockopt(option, value)


def _take(socket: zmq.Socket[bytes] | None) -> list[bytes] | None:
    """One message, if there is any."""
    if socket is None:
        return None
    try:
        return socket.recv_multipart(zmq.DONTWAIT)
    except zmq.Again:
        return None
