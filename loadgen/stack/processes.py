"""Child processes with a log, a sign of readiness and a certain end, and free ports for them.

Each child leads a process group of its own, so that Ctrl-C reaches only us and the end of a child ends its children.
Knows nothing of what they do.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

# Below the range from which Linux takes the ports of outgoing connections (32768 and up): a port that is given to a
# server must still be free when the server is restarted.
PORTS = range(12_000, 32_000)
POLL = 0.02  # seconds between two looks
TAIL = 30  # lines of a log that an error shows
GRACE = 5.0  # seconds between SIGTERM and SIGKILL


_given: deque[int] = deque(maxlen=1_000)


class ProcessFailed(Exception):
    """A child did not start, or ended on its own. The message holds the end of its log."""


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that is free. Random, so that two processes hardly ever get the same one; and none that this
    process was given lately, whose server may not have started yet: a stack asks for dozens."""
    chance = random.SystemRandom()
    for _ in range(200):
        port = chance.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
        if port not in _given:
            _given.append(port)
            return port
    raise ProcessFailed(f"no free port from {PORTS.start} to {PORTS.stop - 1} on {host}")


def listens(port: int, host: str = "127.0.0.1") -> bool:
    """Whether somebody accepts connections."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((host, port)) == 0


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until the block is done, so that no process is forgotten between its start and our knowing of it.

    A handler and not a signal mask: a mask would be inherited by what is started within.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python interrupts its main thread only
        return
    waiting: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: waiting.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if waiting:
            signal.raise_signal(signal.SIGINT)


class Child:
    """One program that can be started, killed and started again, always with the same arguments."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path, ready: Callable[[], bool]) -> None:
        """`ready` is asked again and again after the start; it must not block for long."""
        self.name = name
        self.arguments = list(arguments)
        self.log = log
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        """Start it without waiting.

        Raises:
            ProcessFailed: there is no such program.
        """
        try:
            with self.log.open("ab") as log, uninterrupted():
                self._process = subprocess.Popen(  # noqa: S603 - our own command line
                    self.arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as error:
            raise ProcessFailed(f"{self.name}: cannot run {self.arguments[0]}: {error.strerror}") from error

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Block until it is ready.

        Raises:
            ProcessFailed: it ended, or is not ready in time.
        """
        deadline = time.monotonic() + timeout
        while True:
            self.require()
            if self._ready():
                return
            if time.monotonic() > deadline:
                raise ProcessFailed(f"{self.name} is not ready after {timeout:.0f} s. {self.tail()}")
            time.sleep(POLL)

    def require(self) -> None:
        """Check that it runs.

        Raises:
            ProcessFailed: it does not.
        """
        if self.pid is None:
            status = self._process.returncode if self._process else None
            raise ProcessFailed(f"{self.name} ended with status {status}. {self.tail()}")

    def restart(self) -> None:
        """Start it again after a `kill` or `stop`, and wait until it is ready. Raises ProcessFailed."""
        self.start()
        self.wait_ready()

    def kill(self) -> None:
        """End it at once (SIGKILL), as a crash would."""
        self._signal(signal.SIGKILL)
        if self._process:
            self._process.wait()

    def terminate(self) -> None:
        """Ask it to end (SIGTERM) and do not wait."""
        self._signal(signal.SIGTERM)

    def stop(self, grace: float = GRACE) -> int | None:
        """End it gracefully (SIGTERM), or after `grace` seconds at once. The exit status, None if it never ran."""
        if self._process is None:
            return None
        self.terminate()
        try:
            return self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.returncode

    def tail(self, lines: int = TAIL) -> str:
        """The end of its log, for people."""
        text = self.log.read_text("utf-8", "replace").splitlines()[-lines:] if self.log.exists() else []
        return f"The end of {self.log}:\n" + "\n".join(f"  {line}" for line in text) if text else "Its log is empty."

    def _signal(self, number: int) -> None:
        if self.pid is not None:
            os.killpg(self.pid, number)


class Started(ABC):
    """Children that start wave by wave and end together: a context manager for its subclasses."""

    @property
    @abstractmethod
    def waves(self) -> Sequence[Sequence[Child | None]]:
        """In the order of starting; each wave is ready before the next begins. None is a part that is left out."""

    @property
    def children(self) -> list[Child]:
        """Everything that runs, in the order of starting."""
        return [child for wave in self.waves for child in wave if child is not None]

    def __enter__(self) -> Self:
        """Start everything and wait until it is ready.

        Raises:
            ProcessFailed: with the end of the log of the part that failed.
        """
        try:
            for wave in self.waves:
                started = [child for child in wave if child is not None]
                for child in started:
                    child.start()
                for child in started:
                    child.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End everything. A second Ctrl-C does not interrupt it."""
        with uninterrupted():
            for child in self.children:
                child.terminate()
            for child in self.children:
                child.stop(grace=1.0)
