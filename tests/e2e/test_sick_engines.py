"""Engines that are there and serve nobody: an idle one looks like the best choice, and must not be taken for it."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import os
import signal
import socketserver
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from extproc.routing.pools.ejections import CONSECUTIVE_ERRORS
from loadgen.stack.stack import Engine, Stack
from tests.support.agents import chat, post, until

REQUESTS = 60
AT_ONCE = 4


class Dead(http.server.BaseHTTPRequestHandler):
    """Answers 503 to every POST at once, and to GET what `health` says."""

    protocol_version = "HTTP/1.1"
    health = 503

    def do_GET(self) -> None:
        self._answer(self.health)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._answer(503)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


@contextlib.contextmanager
def dead(engine: Engine, health: int) -> Iterator[None]:
    """In the place of an engine, one that is dead inside."""
    engine.kill()
    with Server(("127.0.0.1", engine.port), type("Answers", (Dead,), {"health": health})) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


async def burst(stack: Stack, requests: int = REQUESTS) -> Counter[int]:
    """Statuses of first turns, a few at a time."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> int:
        async with limit:
            return (await post(stack, chat(("user", f"request {number}")), timeout_s=30.0)).status

    return Counter(await asyncio.gather(*(one(number) for number in range(requests))))


def healthy(stack: Stack, engine: Engine) -> bool:
    shown: bool = stack.state()["pools"]["engines"]["instances"][engine.address]["healthy"]
    return shown


async def serves(stack: Stack, engine: Engine) -> None:
    """Wait until new requests go to an engine."""
    async with asyncio.timeout(15):
        while (await post(stack, chat(("user", "hello")))).engine != engine.address:
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("health", [503, 200])
async def test_an_engine_answers_errors_at_once(health: int) -> None:
    """It loses its traffic after two errors, or a check, whether its health admits it or not; recovered it serves."""
    with Stack(engines=3) as stack:
        victim = stack.engines[0]
        with dead(victim, health):
            statuses = await burst(stack)
            assert statuses[200] >= REQUESTS - CONSECUTIVE_ERRORS - AT_ONCE, statuses  # the others were on their way
            if health != 200:
                await until(lambda: not healthy(stack, victim))
                assert await burst(stack) == {200: REQUESTS}
        await asyncio.to_thread(victim.restart)
        await serves(stack, victim)
        assert healthy(stack, victim)


async def test_an_engine_hangs() -> None:
    """Nothing is sent to an engine that fails its health checks, though it takes connections; awake again it serves."""
    with Stack(engines=3) as stack:
        victim = stack.engines[1]
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGSTOP)
        try:
            await until(lambda: not healthy(stack, victim))
            assert await burst(stack) == {200: REQUESTS}
        finally:
            os.kill(victim.pid, signal.SIGCONT)
        await serves(stack, victim)
        assert healthy(stack, victim)
