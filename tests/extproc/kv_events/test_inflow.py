"""How much of an unfinished message has come, by a real TCP connection."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator

import pytest

from extproc.kv_events.inflow import Inflow

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A sender and a receiver."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
        with sender, receiver:
            yield sender, receiver


def after(inflow: Inflow, count: int) -> int:
    """What is unfinished once so many bytes more have come."""
    deadline = time.monotonic() + 10
    while (unfinished := inflow.unfinished()) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    return unfinished


def test_what_comes_without_a_whole_message_counts(ends: tuple[socket.socket, socket.socket]) -> None:
    """From the first look on; whoever reads the bytes changes nothing. A whole message begins the count anew."""
    sender, receiver = ends
    inflow = Inflow()
    inflow.connected(receiver.fileno())
    assert inflow.unfinished() == 0
    sender.sendall(bytes(50_000))
    assert after(inflow, 50_000) == 50_000
    receiver.recv(1 << 20)
    assert inflow.unfinished() == 50_000
    inflow.whole()
    assert inflow.unfinished() == 0


def test_a_descriptor_of_somebody_else_is_not_looked_at(ends: tuple[socket.socket, socket.socket]) -> None:
    """ZMQ closes its connections before it says so, and the system gives their numbers away again."""
    sender, receiver = ends
    inflow = Inflow()
    inflow.connected(receiver.fileno())
    inflow.unfinished()
    number = receiver.detach()
    socket.socket(fileno=number).close()
    assert inflow.unfinished() == 0
    inflow.disconnected(number)
    assert inflow.unfinished() == 0
    sender.close()


def test_the_borrowed_connection_stays_open(ends: tuple[socket.socket, socket.socket]) -> None:
    """It is ZMQ's."""
    sender, receiver = ends
    inflow = Inflow()
    inflow.connected(receiver.fileno())
    inflow.unfinished()
    sender.sendall(b"hello")
    assert receiver.recv(5) == b"hello"
