"""The index of another process, written through a pipe: how the follower of `memory://` reaches its router.

One stream of frames in order: changes of the index, what engines said of them, and where the followers stand. Order is
what makes it right: a fact comes after the changes that it speaks of. What is on its way when one end dies is lost;
the router then forgets all that came by this pipe, so that nothing false is left, and a new follower begins anew.

Small frames are joined for a moment, since each wakes up the router; large changes are cut, so that none holds up its
loop. Refuses to know who starts the other process, and what a follower is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from itertools import islice
from typing import Final

import msgspec

from extproc.base import metrics
from extproc.base.errors import IndexUnavailable
from extproc.base.facts import Fact
from extproc.base.model import EventReport
from extproc.index import Change, Index

_log = logging.getLogger(__name__)

PREFIX: Final = "pipe:"  # of the index's URL in the process that writes; a descriptor follows
JOIN_S: Final = 0.002  # engines speak once a step, some tens of milliseconds
KEYS_A_FRAME: Final = 2048  # about half a millisecond of the router's loop
SLICE_S: Final = 0.001  # of frames at once, until others of that loop get their turn
SILENCE_S: Final = 15.0  # without a frame, though reports come every second: the follower hangs

_LENGTH: Final = 4  # bytes before each frame


class _Change(msgspec.Struct, tag="change", array_like=True, gc=False):
    pool: str
    instance: str
    forget: bool
    remove: bytes  # keys as unsigned 64-bit integers, as this machine writes them
    add: bytes
    adapters: list[str] | None


class _Said(msgspec.Struct, tag="said", array_like=True, gc=False):
    pool: str
    instance: str
    lost: bool
    stored: bytes
    span: int
    at: float  # by the monotonic clock, which processes of a machine share: a frame may have waited


class _Reports(msgspec.Struct, tag="reports", array_like=True, gc=False):
    pool: str
    reports: dict[str, EventReport]


class PipedIndex:
    """The `Index` of the process that follows. It writes; what is asked of it is known on the other side only."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._encode = msgspec.msgpack.Encoder().encode
        self._waiting = bytearray()
        self._flush: asyncio.TimerHandle | None = None
        self._reader: asyncio.StreamReader | None = None  # nothing comes; without it asyncio closes the stream
        self._writer: asyncio.StreamWriter | None = None
        self._opening = asyncio.Lock()

    @classmethod
    def from_url(cls, url: str) -> PipedIndex:
        """Of `url_of`, in the process that has inherited the descriptor."""
        return cls(int(url.removeprefix(PREFIX)))

    async def apply(self, changes: Sequence[Change]) -> None:
        """See `Index`. Returns when there is room for more."""
        for change in changes:
            if change.writer:
                continue  # what routers write of themselves, they write themselves
            for frame in _cut(change):
                await self._put(frame)

    def tell(self, pool: str, fact: Fact) -> None:
        """Pass on what an engine said, behind the changes that it speaks of."""
        stored = array("Q", fact.stored).tobytes()
        self._add(_Said(pool, fact.instance, fact.lost, stored, fact.span, time.monotonic() - fact.age_s))

    async def report(self, pool: str, reports: Mapping[str, EventReport]) -> None:
        """See `Index`."""
        await self._put(_Reports(pool, dict(reports)))

    async def match(self, pool: str, chain: Sequence[int]) -> Mapping[str, int]:
        """See `Index`: known on the other side."""
        return {}

    def adapters(self, pool: str) -> Mapping[str, Set[str]]:
        """See `Index`: known on the other side."""
        return {}

    async def sizes(self, pool: str) -> Mapping[str, int]:
        """See `Index`: known on the other side."""
        return {}

    async def reports(self, pool: str) -> Mapping[str, EventReport]:
        """See `Index`: known on the other side."""
        return {}

    async def remember(self, pool: str, response: str, instance: str, ttl_s: int) -> None:
        """See `Index`: routers remember for themselves."""

    async def recall(self, pool: str, response: str) -> str | None:
        """See `Index`: known on the other side."""
        return None

    async def close(self) -> None:
        """See `Index`."""
        if self._writer is None:
            self._socket.close()
            return
        self._send()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _put(self, frame: msgspec.Struct) -> None:
        """Add a frame, and wait while the other side has enough to do."""
        if self._writer is None:
            await self._open()
        self._add(frame)
        if len(self._waiting) > KEYS_A_FRAME * 8:
            self._send()
        assert self._writer is not None
        try:
            await self._writer.drain()
        except OSError as error:
            raise IndexUnavailable(f"the router's pipe: {error}") from error
        if self._writer.is_closing():
            raise IndexUnavailable("the router has closed its pipe")

    async def _open(self) -> None:
        async with self._opening:
            if self._writer is None:
                self._reader, self._writer = await asyncio.open_unix_connection(sock=self._socket)

    def _add(self, frame: msgspec.Struct) -> None:
        data = self._encode(frame)
        self._waiting += len(data).to_bytes(_LENGTH, "big") + data
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_later(JOIN_S, self._send)

    def _send(self) -> None:
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        if self._writer is not None and self._waiting:
            if not self._writer.is_closing():
                self._writer.write(bytes(self._waiting))
            self._waiting.clear()


class Inlet:
    """The router's end: takes over what one follower after the other writes. `kill` ends a follower that hangs."""

    def __init__(self) -> None:
        self._pipes: asyncio.Queue[socket.socket] = asyncio.Queue()
        self.open = asyncio.Event()  # whether it takes over what is written
        self.kill: Callable[[], None] = lambda: None

    def new(self) -> socket.socket:
        """A new pipe: the end for the follower, which is to inherit it, and which the caller closes then."""
        ours, theirs = socket.socketpair()
        self._pipes.put_nowait(ours)
        return theirs

    async def run(self, index: Index, hear: Callable[[str, Fact], None]) -> None:
        """Until cancelled."""
        self.open.set()
        while True:
            pipe = await self._pipes.get()
            reader, writer = await asyncio.open_unix_connection(sock=pipe)
            try:
                await _Taker(index, hear).take_all(reader)
            except TimeoutError:
                _log.error("the process that follows the engines' events hangs; ending it")
                self.kill()
            except Exception:
                metrics.EXCEPTIONS.labels("events").inc()
                _log.exception("a bug in what the followers' process says; ending it")
                self.kill()
            finally:
                writer.close()


def url_of(pipe: socket.socket) -> str:
    """The index's URL for the process that inherits the pipe."""
    return f"{PREFIX}{pipe.fileno()}"


class _Taker:
    """What one follower wrote."""

    def __init__(self, index: Index, hear: Callable[[str, Fact], None]) -> None:
        self._index = index
        self._hear = hear
        self._decode = msgspec.msgpack.Decoder(_Change | _Said | _Reports).decode
        self._written: dict[str, set[str]] = defaultdict(set)  # instances, by pool

    async def take_all(self, reader: asyncio.StreamReader) -> None:
        """Until the follower's end is closed; then nothing that it wrote is left. Raises TimeoutError if it hangs."""
        try:
            until = time.monotonic() + SLICE_S
            while True:
                async with asyncio.timeout(SILENCE_S):
                    size = int.from_bytes(await reader.readexactly(_LENGTH), "big")
                    data = await reader.readexactly(size)
                await self._take(self._decode(data))
                if time.monotonic() > until:
                    await asyncio.sleep(0)
                    until = time.monotonic() + SLICE_S
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            await self._forget()

    async def _take(self, frame: _Change | _Said | _Reports) -> None:
        match frame:
            case _Change(pool, instance, forget, remove, add, adapters):
                self._written[pool].add(instance)
                await self._index.apply(
                    [Change(pool, instance, forget, _keys(remove), _keys(add), adapters)],
                )
            case _Said(pool, instance, lost, stored, span, at):
                self._hear(pool, Fact(instance, lost, _keys(stored), span, max(0.0, time.monotonic() - at)))
            case _Reports(pool, reports):
                self._written[pool].update(reports)
                await self._index.report(pool, reports)

    async def _forget(self) -> None:
        for pool, instances in self._written.items():
            await self._index.report(pool, {})
            await self._index.apply([Change(pool, instance, forget=True) for instance in instances])
            for instance in instances:
                self._hear(pool, Fact(instance, lost=True))


def _cut(change: Change) -> list[_Change]:
    """A change as frames that are small enough."""
    frames: list[_Change] = []
    remove, add, adapters = iter(change.remove), iter(change.add), change.adapters
    first = True
    while True:
        gone = array("Q", islice(remove, KEYS_A_FRAME))
        come = array("Q", islice(add, KEYS_A_FRAME - len(gone)))
        if not (first or gone or come):
            return frames
        names = list(adapters) if first and adapters is not None else None
        forget = first and change.forget
        frames.append(_Change(change.pool, change.instance, forget, gone.tobytes(), come.tobytes(), names))
        first = False


def _keys(data: bytes) -> Sequence[int]:
    return array("Q", data)
