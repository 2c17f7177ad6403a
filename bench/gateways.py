"""Gateways in front of trivial backends: Envoy alone, Envoy with an ext_proc server, and other routers in their place.

Owns how each is started and what its counters must say. A gateway is ready only when every ext_proc server is healthy
to Envoy, and `counted` fails where a request was not decided: Envoy goes on without an ext_proc that it does not find
healthy, and a benchmark of that would measure nothing. Refuses to know what is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from prometheus_client.parser import text_string_to_metric_families

from bench.peers import LOG_LEVEL, PROGRAMS, VENV
from extproc.app.workers import STRIDE
from extproc.base.model import Reason
from loadgen.engine.options import MODEL_DIR
from loadgen.stack.envoy_config import HOST, EnvoySettings, render
from loadgen.stack.layout import spaced
from loadgen.stack.parts import envoy_program, get
from loadgen.stack.processes import Child, Started, free_port, listens

ROOT = Path(__file__).resolve().parent.parent
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
MESSAGES = 3  # of one exchange: headers, body, the response's headers
# Decisions for these reasons looked at no prompt: somebody who measures them measures too little.
BLIND = frozenset(
    {
        Reason.NO_BODY,
        Reason.BODY_NOT_SENT,
        Reason.BODY_TOO_LARGE,
        Reason.BODY_TOO_COSTLY,
        Reason.UNREADABLE_BODY,
        Reason.UNSUPPORTED_API,
        Reason.RENDER_FAILED,
        Reason.INTERNAL_ERROR,
        Reason.INDEX_UNAVAILABLE,
        Reason.NO_POOL,
        Reason.NO_INSTANCE,
        Reason.SHED,
    }
)


class Uncounted(Exception):
    """The counters do not agree with the requests that were sent: what was measured is not what it seems."""


class Backend(asyncio.Protocol):
    """The least HTTP server: reads a request with a content-length, answers `{}`, keeps the connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._wanted = 0  # bytes of the request that is coming; 0 before its head has come

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while self._buffer and len(self._buffer) >= (self._wanted or self._length()):
            if not self._wanted:
                return  # the head has not come
            del self._buffer[: self._wanted]
            self._wanted = 0
            self._transport.write(ANSWER)

    def _length(self) -> int:
        end = self._buffer.find(b"\r\n\r\n")
        if end >= 0:
            head = bytes(self._buffer[:end]).lower()
            self._wanted = end + 4 + int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        return self._wanted


@contextlib.asynccontextmanager
async def backends(count: int) -> AsyncIterator[list[int]]:
    """So many trivial backends in this process; their ports."""
    ports = [free_port() for _ in range(count)]
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Backend, HOST, port) for port in ports]
    try:
        yield ports
    finally:
        for server in servers:
            server.close()


class Gateway(Started):
    """Something that clients send requests to. Attributes: `name`, `url`."""

    def __init__(self, name: str, url: str, children: Sequence[Sequence[Child]]) -> None:
        self.name = name
        self.url = url
        self._waves = children

    @property
    def waves(self) -> Sequence[Sequence[Child]]:
        """What it consists of, in the order of starting."""
        return self._waves

    @property
    def processes(self) -> list[tuple[str, int]]:
        """Name and id of each of its processes, the children's children too."""
        return [(child.name, pid) for child in self.children if child.pid for pid in _family(child.pid)]

    @contextlib.contextmanager
    def counted(self, requests: int) -> Iterator[None]:
        """What is sent within must be so many requests, each of them decided. Raises Uncounted."""
        yield


class EnvoyGateway(Gateway):
    """Envoy in the shipped configuration, with ext_proc servers or without any."""

    def __init__(
        self, name: str, servers: Sequence[Child], envoy: Child, url: str, admin: int, metrics: Sequence[int]
    ) -> None:
        super().__init__(name, url, [servers, [envoy]])
        self._servers, self._admin, self._metrics = len(servers), admin, metrics

    @contextlib.contextmanager
    def counted(self, requests: int) -> Iterator[None]:
        """See `Gateway`."""
        due = dict.fromkeys(_COUNTERS, 0) | {"http.agents.downstream_rq_completed": requests}
        if self._servers:
            due |= {f"{_EXT_PROC}.streams_started": requests, f"{_EXT_PROC}.stream_msgs_received": MESSAGES * requests}
        if self._metrics:
            due["decisions"] = due["decisions that saw the prompt"] = requests
        before = self._counts()
        yield
        for _ in range(50):  # the last request is counted a moment after its answer
            told = {name: count - before[name] for name, count in self._counts().items()}
            if told == due:
                return
            time.sleep(0.02)
        raise Uncounted(f"{self.name}: {told} was counted, and not {due}")

    def _counts(self) -> Mapping[str, int]:
        counts = dict(_stats(self._admin, _COUNTERS))
        if self._metrics:
            decided = self._decisions()
            counts["decisions"] = sum(decided.values())
            counts["decisions that saw the prompt"] = sum(n for reason, n in decided.items() if reason not in BLIND)
        return counts

    def _decisions(self) -> Mapping[str, int]:
        """By reason."""
        found: dict[str, int] = {}
        for port in self._metrics:  # one page a worker
            page = (get(f"http://{HOST}:{port}/metrics") or b"").decode()
            for family in text_string_to_metric_families(page):
                for sample in family.samples if family.name == "smetric_decisions" else ():
                    found[sample.labels["reason"]] = found.get(sample.labels["reason"], 0) + int(sample.value)
        return found


_EXT_PROC = "http.agents.ext_proc"
_COUNTERS = (
    "http.agents.downstream_rq_completed",
    f"{_EXT_PROC}.streams_started",
    f"{_EXT_PROC}.stream_msgs_received",
    f"{_EXT_PROC}.failure_mode_allowed",
    f"{_EXT_PROC}.message_timeouts",
)


def envoy_alone(directory: Path, engines: Sequence[int]) -> Gateway:
    """Envoy without ext_proc."""
    return _with_envoy("Envoy alone", directory, engines, [], [])


def empty_server(directory: Path, engines: Sequence[int]) -> Gateway:
    """Envoy and an ext_proc server that answers without looking."""
    port = free_port()
    command = [sys.executable, str(ROOT / "bench" / "empty_server.py"), f"{HOST}:{port}"]
    server = Child("ext_proc", command, directory / "empty.log", lambda: listens(port))
    return _with_envoy("empty server", directory, engines, [server], [port], port)


def ours(
    directory: Path, engines: Sequence[int], *, workers: int = 1, index: str = "memory://", name: str = "ours"
) -> Gateway:
    """Envoy and our router."""
    first, health, metrics = (spaced(workers + 1) for _ in range(3))
    yaml = directory / f"{_slug(name)}.yaml"
    command = [sys.executable, "-m", "extproc", "serve", "--log-level", "warning", "--envoy-yaml", str(yaml)]
    command += ["--listen", f"{HOST}:{first}", "--health", f"{HOST}:{health}", "--metrics", f"{HOST}:{metrics}"]
    command += ["--workers", str(workers), "--index", index]
    ports = range(first, first + STRIDE * workers, STRIDE)
    server = Child("ext_proc", command, directory / f"{_slug(name)}.server.log", lambda: all(map(listens, ports)))
    pages = range(metrics, metrics + STRIDE * workers, STRIDE)
    return _with_envoy(name, directory, engines, [server], ports, health, pages)


def peer(program: str, policy: str, directory: Path, engines: Sequence[int]) -> Gateway:
    """Another router in Envoy's place; see `bench/peers.py`."""
    port, metrics = free_port(), free_port()
    words = PROGRAMS[program]
    command = [str(VENV / "bin" / words[0]), *words[1:], "--host", HOST, "--port", str(port), "--policy", policy]
    command += ["--prometheus-host", HOST, "--prometheus-port", str(metrics), "--log-level", LOG_LEVEL[program]]
    command += ["--worker-urls", *(f"http://{HOST}:{engine}" for engine in engines)]
    url = f"http://{HOST}:{port}"
    child = Child(program, command, directory / f"{program}.log", lambda: get(f"{url}/health") is not None)
    return Gateway(f"{program} {policy}", url, [[child]])


def _with_envoy(
    name: str,
    directory: Path,
    engines: Sequence[int],
    servers: Sequence[Child],
    ports: Sequence[int],
    health: int = 0,
    metrics: Sequence[int] = (),
) -> EnvoyGateway:
    port, admin = free_port(), free_port()
    settings = EnvoySettings(
        port=port,
        admin_port=admin,
        access_log=directory / f"{_slug(name)}.access.log",
        model_dir=MODEL_DIR,
        engines=[{"port": engine} for engine in engines],
        extproc_ports=ports,
        health_port=health,
        cluster={"source": "routed"},
    )
    yaml = directory / f"{_slug(name)}.yaml"
    # A machine that others use too may keep a message waiting for longer than any operator would.
    yaml.write_text(re.sub("message_timeout: .+", "message_timeout: 60s", render(settings)))
    command = [envoy_program(), "-c", str(yaml), "--disable-hot-restart", "--concurrency", "2", "--log-level", "error"]
    log = directory / f"{_slug(name)}.envoy.log"
    envoy = Child("Envoy", command, log, lambda: listens(port) and _healthy(admin, len(ports), len(engines)))
    return EnvoyGateway(name, servers, envoy, f"http://{HOST}:{port}", admin, metrics)


def _healthy(admin: int, servers: int, engines: int) -> bool:
    """Whether Envoy finds all of them healthy: before that it goes on without ext_proc, and says nothing."""
    found = _stats(admin, ("cluster.extproc.membership_healthy", "cluster.engines.membership_healthy"))
    return list(found.values()) == [servers, engines]


def _stats(admin: int, names: Sequence[str]) -> Mapping[str, int]:
    """Counters and gauges of Envoy; 0 for what it has none of."""
    lines = (get(f"http://{HOST}:{admin}/stats") or b"").decode().splitlines()
    values = dict(line.split(": ", 1) for line in lines if ": " in line)
    return {name: int(values.get(name, 0)) for name in names}


def _family(pid: int) -> Iterator[int]:
    """A process and all that it started, as far as they run."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from _family(int(child))


def _slug(name: str) -> str:
    return name.replace(" ", "-").replace(",", "")
