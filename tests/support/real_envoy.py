"""A real Envoy between a test, a processor in the test's own process, and engines that do what the test says.

Lighter than a stack of processes: one Envoy serves as many listeners as a module wants to compare, each with the
ext_proc filter of envoy/drop-in.yaml in a mode of its own.

    async with RealEnvoy({"buffered": lambda listener: None, ...}) as envoy:
        async with envoy.connect("buffered") as client:
            await client.send(CHAT)
            head = await client.head()
"""

from __future__ import annotations

import asyncio
import copy
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from loadgen.stack.parts import envoy_program, get
from loadgen.stack.processes import free_port
from tests.support.envoy_yaml import Yaml, clean
from tests.support.ext_proc_client import Served
from tests.support.paths import ROOT

HOST = "127.0.0.1"
PATIENCE_S = 20.0
BODY = b'{"messages": [{"role": "user", "content": "hello"}], "stream": true}'
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"

Change = Callable[[Yaml], None]


def post(path: str = "/v1/chat/completions", body: bytes = BODY, headers: Sequence[str] = ()) -> bytes:
    """A request as HTTP/1.1 writes it."""
    lines = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


def filter_of(listener: Yaml) -> Yaml:
    """The ext_proc filter of a listener."""
    (found,) = (f["typed_config"] for f in manager_of(listener)["http_filters"] if f["name"].endswith("ext_proc"))
    typed: Yaml = found
    return typed


def manager_of(listener: Yaml) -> Yaml:
    """The HTTP connection manager of a listener."""
    found: Yaml = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return found


def mode(request_body: str, **more: Any) -> Change:
    """A listener whose filter has this `request_body_mode`; `more` are other keys of the processing mode."""

    def change(listener: Yaml) -> None:
        processing = {"request_body_mode": request_body, **more}
        if "FULL_DUPLEX_STREAMED" in (request_body, more.get("response_body_mode")):
            filter_of(listener)["failure_mode_allow"] = False
        if request_body == "FULL_DUPLEX_STREAMED":
            processing["request_trailer_mode"] = "SEND"  # Envoy demands it
        filter_of(listener)["processing_mode"] = processing

    return change


class Engine:
    """An HTTP/1.1 server. A reply streams until `release` is set; upgrades and CONNECT are answered and echoed."""

    def __init__(self) -> None:
        self.heads: list[str] = []  # of the requests that arrived: request line and headers, in lower case
        self.bodies: list[bytes] = []
        self.running = 0
        self.release = asyncio.Event()
        self.reply: Callable[[str, asyncio.StreamReader, asyncio.StreamWriter], Any] = self.stream
        self.address = ""
        self._server: asyncio.Server

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, 0, limit=2**20)
        self.address = f"{HOST}:{self._server.sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        self._server.close()

    async def stream(self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One event at once, the end when the test releases it or the client is gone; /health is answered at once."""
        self.bodies.append(await body_of(head, reader))
        if head.startswith("get /health "):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            return
        writer.write(SSE + b"5\r\nhello\r\n")
        released, gone = asyncio.ensure_future(self.release.wait()), asyncio.ensure_future(reader.read(1))
        await asyncio.wait((released, gone), return_when=asyncio.FIRST_COMPLETED)
        for task in (released, gone):
            task.cancel()
        await asyncio.gather(released, gone, return_exceptions=True)
        writer.write(END)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                self.heads.append(head)
                self.running += 1
                try:
                    if "\r\nupgrade:" in head or head.startswith("connect"):
                        await _echo(head, reader, writer)
                        return
                    await self.reply(head, reader, writer)
                    await writer.drain()
                finally:
                    self.running -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def body_of(head: str, reader: asyncio.StreamReader) -> bytes:
    """The body of a request with this head (lower case)."""
    fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
    if "chunked" not in fields.get("transfer-encoding", ""):
        return await reader.readexactly(int(fields.get("content-length", "0")))
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    while await reader.readline() != b"\r\n":
        pass  # trailers
    return body


async def _echo(head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    protocol = next((line.partition(": ")[2] for line in head.split("\r\n") if line.startswith("upgrade:")), "")
    said = f"101 Switching Protocols\r\nupgrade: {protocol}\r\nconnection: upgrade" if protocol else "200 OK"
    writer.write(f"HTTP/1.1 {said}\r\n\r\n".encode())
    while data := await reader.read(4096):
        writer.write(b"echo " + data)


class Client:
    """One connection to Envoy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> str:
        """The head of an answer."""
        async with asyncio.timeout(PATIENCE_S):
            return (await self.reader.readuntil(b"\r\n\r\n")).decode()

    async def until(self, text: bytes) -> bytes:
        """What comes up to and with this text."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.readuntil(text)

    async def read(self) -> bytes:
        """What comes next; empty where Envoy closed."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.read(65536)


class RealEnvoy:
    """See the module. `served` is the processor, `engines` the instances of its pool."""

    def __init__(
        self, listeners: Mapping[str, Change], engines: int = 1, whole: Change = lambda tree: None, **served: Any
    ) -> None:
        """`whole` changes the whole configuration at last, `served` is for the processor."""
        self.engines = [Engine() for _ in range(engines)]
        self.served: Served
        self.ports = {name: free_port() for name in listeners}
        self.admin = free_port()
        self._listeners, self._whole, self._options = listeners, whole, served
        self._directory = tempfile.TemporaryDirectory(prefix="smetric-envoy-")
        self._stack = AsyncExitStack()
        self._process: asyncio.subprocess.Process

    def change(self, whole: Change) -> None:
        """Change the whole configuration at last, knowing the ports."""
        self._whole = whole

    async def __aenter__(self) -> RealEnvoy:
        for engine in self.engines:
            await engine.start()
            self._stack.callback(engine.stop)
        served = Served(addresses=[engine.address for engine in self.engines], **self._options)
        self.served = await self._stack.enter_async_context(served.run())
        path = Path(self._directory.name)
        (path / "envoy.yaml").write_text(yaml.safe_dump(self._configuration(), sort_keys=False), "utf-8")
        arguments = ["--concurrency", "1", "--use-dynamic-base-id", "-l", "warning"]
        arguments += ["--file-flush-interval-msec", "50", "-c", str(path / "envoy.yaml")]
        with (path / "log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                envoy_program(), *arguments, stdout=log, stderr=log, start_new_session=True
            )
        for port in self.ports.values():
            await self._listens(port)
        return self

    async def __aexit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await self._stack.aclose()
        self._directory.cleanup()

    @asynccontextmanager
    async def connect(self, listener: str) -> AsyncIterator[Client]:
        """A connection of its own."""
        reader, writer = await asyncio.open_connection(HOST, self.ports[listener])
        try:
            yield Client(reader, writer)
        finally:
            writer.close()

    async def ask(self, listener: str, request: bytes, until: bytes = b"\r\n\r\n") -> str:
        """The answer to one request, up to and with `until`."""
        async with self.connect(listener) as client:
            await client.send(request)
            return (await client.until(until)).decode("utf-8", "replace")

    async def stats(self, part: str) -> dict[str, int]:
        """Envoy's counters and gauges whose names have this in them, where they are not 0."""
        page = (await asyncio.to_thread(get, f"http://{HOST}:{self.admin}/stats") or b"").decode()
        assert "server.live: 1" in page
        pairs = (line.split(": ") for line in page.splitlines() if part in line and line.count(": ") == 1)
        return {name: int(value) for name, value in pairs if value.isdigit() and value != "0"}

    @property
    def log(self) -> str:
        """Envoy's log and access log."""
        return (Path(self._directory.name) / "log").read_text("utf-8", "replace")

    def in_flight(self) -> int:
        """Requests that the processor counts, of all instances."""
        return sum(count for count, *_ in self.served.loads.snapshot("pool").values())

    def running(self) -> int:
        """Requests that the engines work on."""
        return sum(engine.running for engine in self.engines)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until it holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.01)

    def _configuration(self) -> Yaml:
        tree = clean(ROOT / "envoy" / "drop-in.yaml")
        static = tree["static_resources"]
        (shipped,) = static["listeners"]
        manager_of(shipped)["access_log"][0]["typed_config"]["log_format"]["json_format"]["details"] = (
            "%RESPONSE_CODE_DETAILS%"
        )
        static["listeners"] = []
        for name, change in self._listeners.items():
            listener = copy.deepcopy(shipped) | {"name": name, "address": _address(self.ports[name])}
            manager_of(listener)["stat_prefix"] = name
            change(listener)
            static["listeners"].append(listener)
        engines, processor = static["clusters"]
        _static(engines, [int(engine.address.rpartition(":")[2]) for engine in self.engines])
        _static(processor, [self.served.port])
        tree["admin"] = {"address": _address(self.admin)}
        self._whole(tree)
        return tree

    async def _listens(self, port: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    _, writer = await asyncio.open_connection(HOST, port)
                except OSError:
                    assert self._process.returncode is None, self.log[-2000:]
                    await asyncio.sleep(0.02)
                else:
                    writer.close()
                    return


def _static(cluster: Yaml, ports: Sequence[int]) -> None:
    cluster["type"] = "STATIC"
    cluster.pop("dns_lookup_family")
    endpoints = [{"endpoint": {"address": _address(port)}} for port in ports]
    cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]


def _address(port: int) -> Yaml:
    return {"socket_address": {"address": HOST, "port_value": port}}
