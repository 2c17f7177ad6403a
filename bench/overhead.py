"""What ext_proc adds to a request through a real Envoy: with and without it, the same trivial backends, in turn.

Both Envoys have the shipped configuration. The backends answer every request at once, so that what is left is the
gateway. Rounds alternate; medians over rounds of each round's median are reported, for one client at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

import aiohttp
import uvloop

from bench.chat import body
from loadgen.engine.options import MODEL_DIR
from loadgen.stack.envoy_config import EnvoySettings, render

ROOT = Path(__file__).resolve().parent.parent
CHAT = "/v1/chat/completions"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class Backend(asyncio.Protocol):
    """The least HTTP server: reads a request with a content-length, answers `{}`, keeps the connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:end]).lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            if len(self._buffer) < end + 4 + length:
                return
            del self._buffer[: end + 4 + length]
            self._transport.write(ANSWER)


def ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


async def ready(port: int) -> None:
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with (
                    aiohttp.ClientSession() as http,
                    http.post(f"http://127.0.0.1:{port}{CHAT}", data=body(1_000, 3)) as answer,
                ):
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.1)


async def round_of(http: aiohttp.ClientSession, port: int, payload: bytes, count: int) -> float:
    """The median seconds of `count` requests, one after the other."""
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        async with http.post(f"http://127.0.0.1:{port}{CHAT}", data=payload) as answer:
            await answer.read()
            assert answer.status == 200
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


async def measure(rounds: int, directory: Path) -> None:
    plain, plain_admin, ours, ours_admin, grpc, health, metrics, *backends = ports(11)
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Backend, "127.0.0.1", port) for port in backends]
    commands = []
    for name, port, admin, extproc in (("plain", plain, plain_admin, ()), ("ours", ours, ours_admin, (grpc,))):
        settings = EnvoySettings(
            port=port,
            admin_port=admin,
            access_log=directory / f"{name}.log",
            model_dir=MODEL_DIR,
            engines=[{"port": backend} for backend in backends],
            extproc_ports=extproc,
            health_port=health,
            cluster={"source": "routed"},
        )
        path = directory / f"{name}.yaml"
        path.write_text(render(settings))
        envoy = [str(Path(sys.executable).with_name("envoy")), "-c", str(path), "--disable-hot-restart"]
        commands.append([*envoy, "--concurrency", "1", "--log-level", "error"])
    serve = [sys.executable, "-m", "extproc", "serve", "--log-level", "warning", "--envoy-yaml", str(path)]
    serve += ["--listen", f"127.0.0.1:{grpc}", "--health", f"127.0.0.1:{health}", "--metrics", f"127.0.0.1:{metrics}"]
    running = [subprocess.Popen(command, cwd=ROOT, start_new_session=True) for command in [serve, *commands]]
    try:
        await asyncio.gather(ready(plain), ready(ours))
        await asyncio.sleep(3)  # Envoy's first health check of ext_proc
        print(f"one client at a time, medians of {rounds} rounds")
        print(f"{'body':>8}  {'Envoy alone ms':>15} {'with ext_proc ms':>17} {'added ms':>9}")
        async with aiohttp.ClientSession() as http:
            for label, payload, count in (("1 KB", body(1_000, 3), 300), ("400 KB", body(400_000, 190), 60)):
                rows = [
                    (await round_of(http, plain, payload, count), await round_of(http, ours, payload, count))
                    for _ in range(rounds)
                ]
                without, with_us = (statistics.median(column) * 1000 for column in zip(*rows, strict=True))
                print(f"{label:>8}  {without:>15.2f} {with_us:>17.2f} {with_us - without:>9.2f}")
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGTERM)
        for process in running:
            process.wait(timeout=40)
        for server in servers:
            server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        uvloop.run(measure(arguments.rounds, Path(directory)))


if __name__ == "__main__":
    main()
