"""The ZMQ sockets of one instance's events: what is published, whether we are connected, and a replay.

The only file that speaks ZMQ. It moves messages and refuses to know what they mean. Sockets hold few messages, so
memory is bounded and the engine keeps the rest.

An address with the host `*`, `0.0.0.0` or `[::]` is one that we bind and the engine connects to: one port an instance.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import zmq
from zmq.utils.monitor import parse_monitor_message

MESSAGES = 64  # that wait in a socket of ours; the engine's own queue holds a hundred thousand more
REPLAYED_MESSAGES = 10_000  # a ROUTER drops what its peer does not take: let a whole replay come at once
LARGEST_MESSAGE = 64 * 1024 * 1024  # bytes; ZMQ ends a connection that sends more
HEARTBEAT_MS = 5000  # a peer that is silent three times so long is gone, though TCP has not noticed
LONGEST_RECONNECT_MS = 1000  # between attempts to connect

_BOUND = ("tcp://*:", "tcp://0.0.0.0:", "tcp://[::]:")

Context = zmq.Context[zmq.Socket[bytes]]


class SocketError(Exception):
    """A socket could not be opened or used: a malformed address, a port that is taken, no descriptors left."""


def new_context() -> Context:
    """A context for the sockets of many instances."""
    context = zmq.Context()
    context.max_sockets = context.get(zmq.SOCKET_LIMIT)  # three an instance; the default ends at 341
    return context


class Sockets:
    """Opened by `opened`, for as long as its block lasts."""

    def __init__(self, context: Context, live: str, replay: str | None) -> None:
        self._context = context
        self._live_address = live
        self._replay_address = replay
        self._live: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._replay: zmq.Socket[bytes] | None = None

    @property
    def bound(self) -> bool:
        """Whether the engine is to connect to us."""
        return self._live_address.startswith(_BOUND)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Follow the live address. Whatever ZMQ refuses meanwhile ends the block with a SocketError."""
        try:
            self._live = live = self._context.socket(zmq.SUB)
            self._monitor = live.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
            _configure(live, MESSAGES)
            live.subscribe(b"")
            if self.bound:
                live.bind(self._live_address)
            else:
                live.connect(self._live_address)
            yield
        except zmq.ZMQError as error:
            raise SocketError(f"{self._live_address}: {error}") from error
        finally:
            if self._live is not None:
                self._live.disable_monitor()
            for socket in (self._monitor, self._live, self._replay):
                if socket is not None:
                    socket.close(linger=0)
            self._live = self._monitor = self._replay = None

    def connection(self) -> bool | None:
        """The next news of the connection: whether there is one; None where there are no news."""
        news = _take(self._monitor)
        return None if news is None else parse_monitor_message(news)["event"] != zmq.EVENT_DISCONNECTED

    def published(self) -> list[bytes] | None:
        """The next message that was published, if there is one."""
        return _take(self._live)

    def replayed(self) -> list[bytes] | None:
        """The next message of the replay that was asked for last, if there is one."""
        return _take(self._replay)

    def ask(self, request: list[bytes]) -> None:
        """Ask for a replay, on a fresh socket: answers to an earlier request are void."""
        self.end_replay()
        self._replay = self._context.socket(zmq.DEALER)
        _configure(self._replay, REPLAYED_MESSAGES)
        self._replay.connect(str(self._replay_address))
        self._replay.send_multipart(request, zmq.DONTWAIT)

    def end_replay(self) -> None:
        """Nothing more of the replay is wanted."""
        if self._replay is not None:
            self._replay.close(linger=0)
            self._replay = None

    async def readable(self, woken: asyncio.Event, seconds: float | None) -> None:
        """Wait until a socket has something, `woken` is set, or so many seconds have passed."""
        sockets = [socket for socket in (self._monitor, self._live, self._replay) if socket is not None]
        woken.clear()
        loop = asyncio.get_running_loop()
        for socket in sockets:
            loop.add_reader(socket.fileno(), woken.set)
        try:
            # The descriptor tells of changes only, so look once after watching it.
            if not any(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN for socket in sockets):
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await woken.wait()
        finally:
            for socket in sockets:
                loop.remove_reader(socket.fileno())


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
