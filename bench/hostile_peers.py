"""What hostile peers cost the router's memory, and others their decisions: `python -m bench.hostile_peers`.

Each case has a stack of its own, 20 small requests a second through it, and one hostile peer (bench/chaos/attacks):

- stalled: 20 clients that send 50 MB of a body each and then nothing, in FULL_DUPLEX_STREAMED mode;
- endless: an event peer whose one message has no end, some 1.5 GB of it;
- flood: an event peer that stores 5 million blocks a minute.

A line for each: resident memory of all processes of the router together (before, at the most, a while after the end),
what became of the requests, and the states of the other engines' events.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field

import aiohttp

from bench.outage import replace_events
from bench.soak import processes, resident_mb
from loadgen.replay.chat_request import CHAT
from loadgen.stack.processes import free_port
from loadgen.stack.stack import HOST, Stack

RATE = 20.0  # requests a second of the others
QUIET_S, HOSTILE_S, AFTER_S = 10.0, 30.0, 15.0
CLIENTS, BODY_MB = 20, 50
ENGINE = ["--time-scale", "0.1"]


@dataclass(slots=True)
class Others:
    """The other clients' requests: when each began, how long it took, and its status."""

    rows: list[tuple[float, float, int]] = field(default_factory=list)

    async def ask(self, url: str) -> None:
        """Until cancelled."""
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http, asyncio.TaskGroup() as group:
            for number in range(1_000_000):
                group.create_task(self._one(http, url, number))
                await asyncio.sleep(1 / RATE)

    async def _one(self, http: aiohttp.ClientSession, url: str, number: int) -> None:
        messages = [{"role": "user", "content": f"{number} {'word ' * 200}"}]
        began, status = time.monotonic(), 0
        with contextlib.suppress(aiohttp.ClientError):
            async with http.post(url + CHAT, json={"messages": messages, "max_tokens": 4}) as answer:
                status = answer.status
                await answer.read()
        self.rows.append((began, time.monotonic() - began, status))

    def said(self, since: float, until: float) -> str:
        """p50 and p99 of a time, and what was not 200."""
        rows = [row for row in self.rows if since <= row[0] < until]
        took = sorted(1000 * row[1] for row in rows)
        failed = sum(row[2] != 200 for row in rows)
        p99 = took[min(len(took) - 1, int(0.99 * len(took)))]
        return f"p50 {statistics.median(took):.0f} p99 {p99:.0f} ms, {failed} of {len(rows)} failed"


async def measure(name: str, stack: Stack, hostile: Callable[[], Awaitable[None]]) -> None:
    """One case: quiet, hostile, and what is left a while later."""
    others, most = Others(), dict[str, float]()
    asking = asyncio.create_task(others.ask(stack.url))
    await asyncio.sleep(QUIET_S)
    before, began = memory(stack), time.monotonic()
    working = asyncio.ensure_future(hostile())
    while not working.done():
        most = max(most, memory(stack), key=lambda found: sum(found.values()))
        await asyncio.sleep(0.1)
    await working
    ended = time.monotonic()
    await asyncio.sleep(AFTER_S)
    instances = (await asyncio.to_thread(stack.state))["pools"]["engines"]["instances"]
    states = Counter((one["events"] or {}).get("state") for one in list(instances.values())[:-1])
    reasons = Counter((entry["smetric"] or {}).get("reason") for entry in stack.access_log())
    asking.cancel()
    print(
        f"{name}: memory {sum(before.values()):.0f} MB before, {sum(most.values()):.0f} at most "
        f"({', '.join(f'{part} {size:.0f}' for part, size in most.items())}), {sum(memory(stack).values()):.0f} after; "
        f"quiet {others.said(0, began)}; meanwhile {others.said(began, ended)}; "
        f"undecided {reasons.get(None, 0)} of {reasons.total()}; other engines {dict(states)}",
        flush=True,
    )


def memory(stack: Stack) -> dict[str, float]:
    """Resident memory of `serve` and its children, MB."""
    found: dict[str, float] = {}
    for name, pid in processes(stack):
        with contextlib.suppress(OSError, StopIteration):
            found[name] = resident_mb(pid)
    return found


async def stalled() -> None:
    """Clients that stop within their bodies."""
    with Stack(2, engine_options=ENGINE, body_mode="FULL_DUPLEX_STREAMED") as stack:
        await measure("stalled", stack, lambda: _stall(stack.url))


async def _stall(url: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {60 << 20}\r\n\r\n"
    writers = []
    for _ in range(CLIENTS):
        _reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode())
        with contextlib.suppress(OSError):  # what is not collected goes on to an engine, which may refuse it
            for _ in range(BODY_MB):
                writer.write(b"x" * (1 << 20))
                await writer.drain()
        writers.append(writer)
    await asyncio.sleep(HOSTILE_S)
    for writer in writers:
        writer.close()


async def peer(name: str, attack: str, **options: float) -> None:
    """A hostile publisher in the place of the last engine's events."""
    port = free_port()
    stack = Stack(3, engine_options=ENGINE)
    replace_events(stack, f"tcp://{HOST}:{port}")

    async def work() -> None:
        async with attacking(attack, port=port, **options):
            await asyncio.sleep(HOSTILE_S)

    # Until its events come from somewhere, the last engine's are unknown, and the stack would wait for them.
    async with attacking("clears", port=port):
        await asyncio.to_thread(stack.__enter__)
    try:
        await measure(name, stack, work)
    finally:
        await asyncio.to_thread(stack.close)


@contextlib.asynccontextmanager
async def attacking(name: str, **options: float) -> AsyncIterator[None]:
    """A hostile peer in a process of its own."""
    command = [sys.executable, "-m", "bench.chaos.attack", name, json.dumps(options)]
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.kill()


CASES: Mapping[str, Callable[[], Coroutine[None, None, None]]] = {
    "stalled": stalled,
    "endless": lambda: peer("endless", "endless"),
    "flood": lambda: peer("flood", "stores", blocks_a_second=5_000_000 / 60),
}


def main() -> None:
    """Run the cases that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="default: all")
    for name in parser.parse_args().cases or CASES:
        asyncio.run(CASES[name]())


if __name__ == "__main__":
    main()
