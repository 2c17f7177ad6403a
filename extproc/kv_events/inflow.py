"""What a peer has sent of a message that does not end: bytes that ZMQ holds and nobody can take.

ZMQ bounds frames and counts messages, but a message of many frames is neither bounded nor shown before it is whole. So
the kernel is asked how much has come on each connection, since the last moment at which all that was whole had been
taken. Knows descriptors of TCP connections, which are ZMQ's: it only looks. Refuses to know ZMQ. Linux alone tells;
elsewhere nothing is ever found.
"""

from __future__ import annotations

import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None)
_BYTES_RECEIVED: Final = slice(128, 136)  # tcpi_bytes_received of linux/tcp.h, since Linux 4.1


class Inflow:
    """The connections of one socket."""

    def __init__(self) -> None:
        self._peers: dict[int, Any] = {}  # address of the peer, by descriptor: these are given away again and again
        self._before: int | None = None  # bytes that had come when nothing whole was waiting

    def connected(self, descriptor: int) -> None:
        """A connection has begun."""
        with suppress(OSError), _borrowed(descriptor) as connection:
            self._peers[descriptor] = connection.getpeername()
        self._before = None

    def disconnected(self, descriptor: int) -> None:
        """A connection has ended."""
        self._peers.pop(descriptor, None)
        self._before = None

    def whole(self) -> None:
        """A whole message was taken, or waits to be: what comes counts from the next look on."""
        self._before = None

    def unfinished(self) -> int:
        """Bytes that have come since then, to be asked where nothing whole waits."""
        received = sum(self._received(descriptor, peer) for descriptor, peer in self._peers.items())
        if self._before is None or received < self._before:
            self._before = received
        return received - self._before

    def _received(self, descriptor: int, peer: Any) -> int:
        if _TCP_INFO is None:
            return 0
        with suppress(OSError), _borrowed(descriptor) as connection:
            if connection.getpeername() == peer:
                info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _BYTES_RECEIVED.stop)
                return int.from_bytes(info[_BYTES_RECEIVED], "little")
        return 0


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    connection = socket.socket(fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()
