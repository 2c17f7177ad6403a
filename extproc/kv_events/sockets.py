"""The ZMQ sockets of one instance's events: what is published, whether we are connected, and a replay.

The only file that speaks ZMQ. It moves messages and refuses to know what they mean. Sockets hold few messages of
bounded frames, and a connection whose message does not end is given up (`inflow.py`): so memory is bounded, and the
engine keeps the rest.

An address with the host `*`, `0.0.0.0` or `[::]` is one that we bind and the engine connects to: one port an instance.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import zmq
from zmq.utils.monitor import parse_monitor_message

from extproc.kv_events import replay_turns
from extproc.kv_events.inflow import Inflow

MESSAGES = 16  # that wait in a socket of ours; the engine's own queue holds a hundred thousand more
REPLAYED_MESSAGES = 1_000  # a ROUTER drops what its peer does not take, and is then asked again for the rest
LARGEST_FRAME = 10 * 1024 * 1024  # bytes, above the largest payload that is read; ZMQ ends a connection that sends more
UNFINISHED = 16 * 1024 * 1024  # bytes of a message that has not ended; the kernel's own buffers are among them
HEARTBEAT_MS = 5000  # a peer that is silent three times so long is gone, though TCP has not noticed
LONGEST_RECONNECT_MS = 1000  # between attempts to connect

_CONNECTIONS = zmq.EVENT_CONNECTED | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED  # their values are descriptors
_OTHER_FILES = 128  # of the process

_BOUND = ("tcp://*:", "tcp://0.0.0.0:", "tcp://[::]:")

Context = zmq.Context[zmq.Socket[bytes]]


class SocketError(Exception):
    """A socket could not be opened or used: a malformed address, a port that is taken, no descriptors left; or its peer
    sends a message without end."""


def new_context() -> Context:
    """A context for the sockets of many instances."""
    context = zmq.Context()
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most: int = context.get(zmq.SOCKET_LIMIT)
    context.max_sockets = most if files == resource.RLIM_INFINITY else min(most, sockets_for(files))
    return context


def sockets_for(files: int) -> int:
    """How many sockets fit: three an instance, with four open files, and one a replay, with two (`app/open_files.py`).

    The default ends at 341 instances. More than there are files for would take those of the sockets that are there, and
    of everything else in the process.
    """
    return max(64, replay_turns.AT_ONCE + (files - _OTHER_FILES - 2 * replay_turns.AT_ONCE) * 3 // 4)


class Sockets:
    """Opened by `opened`, for as long as its block lasts."""

    def __init__(self, context: Context, live: str, replay: str | None) -> None:
        self._context = context
        self._live_address = live
        self._replay_address = replay
        self._live: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._replay: zmq.Socket[bytes] | None = None
        self._replay_monitor: zmq.Socket[bytes] | None = None
        self._inflow = self._replay_inflow = Inflow()
        self._endless = ""  # the address of a peer whose message does not end

    @property
    def bound(self) -> bool:
        """Whether the engine is to connect to us."""
        return self._live_address.startswith(_BOUND)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Follow the live address. Whatever ZMQ refuses meanwhile ends the block with a SocketError."""
        try:
            self._inflow, self._endless = Inflow(), ""
            self._live = live = self._context.socket(zmq.SUB)
            self._monitor = live.get_monitor_socket(_CONNECTIONS | zmq.EVENT_HANDSHAKE_SUCCEEDED)
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
            self.end_replay()
            if self._live is not None:
                self._live.disable_monitor()
            for socket in (self._monitor, self._live):
                if socket is not None:
                    socket.close(linger=0)
            self._live = self._monitor = None

    def connection(self) -> bool | None:
        """The next news of the connection: whether there is one; None where there are no news."""
        while (event := _noted(self._monitor, self._inflow)) is not None:
            if event in {zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED}:
                return event != zmq.EVENT_DISCONNECTED
        return None

    def published(self) -> list[bytes] | None:
        """The next message that was published, if there is one. Raises SocketError where one does not end."""
        if self._endless:
            raise SocketError(f"{self._endless}: a message without end; the connection is given up")
        message = _take(self._live)
        if message is not None:
            self._inflow.whole()
        return message

    def replayed(self) -> list[bytes] | None:
        """The next message of the replay that was asked for last, if there is one."""
        message = _take(self._replay)
        if message is not None:
            self._replay_inflow.whole()
        return message

    def check(self) -> bool:
        """Whether there is something to take: a message, or that a peer's does not end, and so fills memory.

        To be called now and then. Who is told so must wake up: a socket says once that it has something, whoever asks,
        and `readable` would wait on, deaf, until the socket is full and the connection breaks.
        """
        waiting = False
        while _noted(self._replay_monitor, self._replay_inflow) is not None:
            pass
        for socket, inflow, address in (
            (self._live, self._inflow, self._live_address),
            (self._replay, self._replay_inflow, self._replay_address),
        ):
            if socket is None:
                continue
            if int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                inflow.whole()
                waiting = True
            elif inflow.unfinished() > UNFINISHED:
                self._endless = str(address)
        return waiting or bool(self._endless)

    def ask(self, request: list[bytes]) -> None:
        """Ask for a replay, on a fresh socket: answers to an earlier request are void."""
        self.end_replay()
        self._replay_inflow = Inflow()
        self._replay = self._context.socket(zmq.DEALER)
        self._replay_monitor = self._replay.get_monitor_socket(_CONNECTIONS)
        _configure(self._replay, REPLAYED_MESSAGES)
        self._replay.connect(str(self._replay_address))
        self._replay.send_multipart(request, zmq.DONTWAIT)

    def end_replay(self) -> None:
        """Nothing more of the replay is wanted."""
        if self._replay is not None:
            self._replay.disable_monitor()
            self._replay.close(linger=0)
            self._replay = None
        if self._replay_monitor is not None:
            self._replay_monitor.close(linger=0)
            self._replay_monitor = None

    async def readable(self, woken: asyncio.Event, seconds: float | None) -> None:
        """Wait until a socket has something, `woken` is set, or so many seconds have passed. `woken` is not set then:
        what sets it while the caller works makes the next call return at once."""
        sockets = [socket for socket in (self._monitor, self._live, self._replay) if socket is not None]
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
            woken.clear()


def _configure(socket: zmq.Socket[bytes], messages: int) -> None:
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.RECONNECT_IVL_MAX, LONGEST_RECONNECT_MS),
        (zmq.RCVHWM, messages),
        (zmq.MAXMSGSIZE, LARGEST_FRAME),
        (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
        (zmq.HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_MS),
        (zmq.IPV6, 1),
    ):
        socket.setsockopt(option, value)


def _noted(monitor: zmq.Socket[bytes] | None, inflow: Inflow) -> int | None:
    """The next news of connections, which the inflow now knows too."""
    news = _take(monitor)
    if news is None:
        return None
    said = parse_monitor_message(news)
    if said["event"] in {zmq.EVENT_CONNECTED, zmq.EVENT_ACCEPTED}:
        inflow.connected(said["value"])
    elif said["event"] == zmq.EVENT_DISCONNECTED:
        inflow.disconnected(said["value"])
    return int(said["event"])


def _take(socket: zmq.Socket[bytes] | None) -> list[bytes] | None:
    """One message, if there is any."""
    if socket is None:
        return None
    try:
        return socket.recv_multipart(zmq.DONTWAIT)
    except zmq.Again:
        return None
