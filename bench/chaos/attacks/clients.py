"""Clients that nobody wants: huge bodies, bodies that never end, replies left halfway, connections by the thousand."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import random
import resource
import socket
import time
from collections.abc import Callable, Mapping, Sequence

import aiohttp

from bench.chaos.attacks.bodies import CHAT, KINDS

BODY_EVERY_S = 0.5
STALLED, STALLED_BYTES = 30, 1 << 20  # clients that stop within their body, and what each has sent
GIVE_UP_EVERY_S = 0.05
CONNECTIONS = 2_000  # over all ports


def bodies(url: str, megabytes: float, seed: int) -> None:
    """One hostile body after the other, of all kinds in turn."""
    asyncio.run(_bodies(url, int(megabytes * 2**20), random.Random(seed)))


async def _bodies(url: str, size: int, rng: random.Random) -> None:
    kinds = list(KINDS.values())
    rng.shuffle(kinds)
    timeout = aiohttp.ClientTimeout(total=20)
    async with aiohttp.ClientSession(timeout=timeout) as http, asyncio.TaskGroup() as sent:
        for path, make in itertools.cycle(kinds):
            sent.create_task(_post(http, url + path, make(size)))
            await asyncio.sleep(BODY_EVERY_S)


async def _post(http: aiohttp.ClientSession, url: str, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    with contextlib.suppress(TimeoutError, aiohttp.ClientError):
        async with http.post(url, data=io.BytesIO(body), headers=headers) as answer:
            await answer.read()


def stalls(host: str, port: int) -> None:
    """Bodies that stop halfway, and heads that come byte by byte; connections that break off are made anew."""
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {8 << 20}\r\n\r\n"
    slow = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-slow: ".encode()
    open_ones: list[socket.socket] = []
    while True:
        with contextlib.suppress(OSError):
            client = socket.create_connection((host, port), timeout=5)
            if len(open_ones) % 2:
                client.sendall(head.encode() + b"x" * STALLED_BYTES)
            else:
                client.sendall(slow)
            open_ones.append(client)
        for client in open_ones[::2]:
            with contextlib.suppress(OSError):
                client.send(b"x")
        if len(open_ones) > STALLED:
            open_ones.pop(0).close()  # in the middle of it
        time.sleep(0.05)


def aborts(url: str, seed: int) -> None:
    """Requests that are left after a moment: in their body, before the reply, within it."""
    asyncio.run(_aborts(url, random.Random(seed)))


async def _aborts(url: str, rng: random.Random) -> None:
    async def give_up(number: int) -> None:
        text = f"{number} {'give up ' * rng.randrange(20_000)}"
        body = b'{"messages":[{"role":"user","content":"%s"}],"max_tokens":2000,"stream":true}' % text.encode()
        timeout = aiohttp.ClientTimeout(total=rng.uniform(0.005, 0.5))
        async with aiohttp.ClientSession(timeout=timeout) as http:
            await _post(http, url + CHAT, body)

    async with asyncio.TaskGroup() as tasks:
        for number in itertools.count():
            tasks.create_task(give_up(number))
            await asyncio.sleep(GIVE_UP_EVERY_S)


def connections(host: str, ports: Sequence[int]) -> None:
    """As many connections as go, to all ports in turn, without a word."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    held = []
    for number in range(CONNECTIONS):
        with contextlib.suppress(OSError):
            held.append(socket.create_connection((host, ports[number % len(ports)]), timeout=1))
    time.sleep(3600)


ATTACKS: Mapping[str, Callable[..., None]] = {
    "bodies": bodies,
    "stalls": stalls,
    "aborts": aborts,
    "connections": connections,
}
