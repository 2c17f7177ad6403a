"""What a request costs on its way: `python -m bench.cost [--peers]`. Ours, and beside it the floor, in one run.

Envoy alone, Envoy with an ext_proc server that answers without looking (the floor of every ext_proc in Python), Envoy
with ours, and with `--peers` other routers in their place, all before the same trivial backends. Rounds alternate, and
medians are printed. A follow-up repeats a session but for its last message; of a first sight every message is new.
Every round checks by Envoy's and our own counters that each request was decided (`bench/gateways.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import aiohttp
import uvloop

from bench import gateways
from bench.chat import body
from bench.cpu import Meter
from bench.gateways import Gateway
from loadgen.stack.parts import Redis

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
SIZES = {"1KB": (1_000, 3), "40KB": (40_000, 20), "400KB": (400_000, 190), "2MB": (2_000_000, 900)}
PEERS = (("vllm-router", "round_robin"), ("vllm-router", "cache_aware"), ("smg", "round_robin"), ("smg", "cache_aware"))
NEW = b"a0b1c2d3e4f5"  # stands in each message where a first sight is to differ
ROUND_S = 2.0  # about; a process' CPU is told in hundredths of a second

Bodies = Iterator[bytes]


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table."""

    size: str
    kind: str  # "follow-up" or "first sight"
    clients: int

    def bodies(self) -> Bodies:
        """Endless, each a request of its own."""
        plain = body(*SIZES[self.size])
        marked = plain.replace(b'"content": "', b'"content": "' + NEW)
        if self.kind == "follow-up":
            head, _, tail = marked.rpartition(NEW)
            return (head + b"%012d" % number + tail for number in itertools.count())
        return (marked.replace(NEW, b"%012d" % number) for number in itertools.count(time.time_ns()))


class Round(NamedTuple):
    """What one round cost a request, in milliseconds; `rate` is in requests a second."""

    p50: float
    cpu: float  # of all processes between client and backends
    server: float  # of the ext_proc server or the peer alone
    rate: float


async def requests(url: str, bodies: Bodies, count: int, clients: int) -> list[float]:
    """Seconds of each of `count` requests, `clients` at a time."""
    seconds: list[float] = []
    payloads = itertools.islice(bodies, count)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def client() -> None:
            for payload in payloads:
                started = time.perf_counter()
                async with http.post(url + CHAT, data=payload, headers=JSON) as answer:
                    await answer.read()
                    if answer.status != 200:
                        raise SystemExit(f"{url} answered {answer.status}: {await answer.text()}")
                seconds.append(time.perf_counter() - started)

        await asyncio.gather(*(client() for _ in range(clients)))
    return seconds


async def measure(gateway: Gateway, bodies: Bodies, count: int, clients: int) -> Round:
    """One round. Raises gateways.Uncounted where a request was not decided."""
    with gateway.counted(count):
        meter, began = Meter(gateway.processes), time.perf_counter()
        seconds = await requests(gateway.url, bodies, count, clients)
        took, spent = time.perf_counter() - began, meter.read().processes
    each = 1000 / count
    server = sum(cpu for name, cpu in spent.items() if name != "Envoy")
    return Round(statistics.median(seconds) * 1000, sum(spent.values()) * each, server * each, count / took)


async def rows(systems: Sequence[Gateway], case: Case, rounds: int) -> dict[str, Round]:
    """Medians of each gateway; the rounds of all of them alternate."""
    bodies = case.bodies()
    count = case.clients
    found: dict[str, list[Round]] = {gateway.name: [] for gateway in systems}
    for gateway in systems:  # connections, and what is made once
        began = time.perf_counter()
        await requests(gateway.url, bodies, max(10, case.clients), case.clients)
        count = max(count, int(ROUND_S / (time.perf_counter() - began) * max(10, case.clients)))
    for _ in range(rounds):
        for gateway in systems:
            found[gateway.name].append(await measure(gateway, bodies, min(count, 600), case.clients))
    return {name: Round(*map(statistics.median, zip(*made, strict=True))) for name, made in found.items()}


def table(case: Case, found: dict[str, Round]) -> None:
    """Print what a case cost, each gateway beside the floor."""
    alone, floor = found["Envoy alone"], found["empty server"]
    print(f"\n{case.size}, {case.kind}, {case.clients} at a time")
    print(
        f"  {'':<26}{'p50 ms':>8}{'added':>8}{'of floor':>9}{'CPU ms':>9}{'of floor':>9}{'server':>8}{'of floor':>9}",
        end="",
    )
    print(f"{'req/s':>8}{'a core':>8}")
    for name, row in found.items():
        added = row.p50 - alone.p50
        cells = f"{row.p50:>8.2f}{added:>8.2f}{_times(added, floor.p50 - alone.p50)}{row.cpu:>9.2f}"
        cells += f"{_times(row.cpu, floor.cpu)}{row.server:>8.2f}{_times(row.server, floor.server)}"
        print(f"  {name:<26}{cells}{row.rate:>8.0f}{1000 / row.cpu if row.cpu else 0:>8.0f}")


def _times(value: float, floor: float) -> str:
    return f"{value / floor:>8.2f}x" if floor > 0 else f"{'-':>9}"


async def compare(arguments: argparse.Namespace, directory: Path) -> None:
    """Start everything, measure every case, print."""
    async with gateways.backends(2) as engines:
        makes: list[Callable[[Path, Sequence[int]], Gateway]] = [gateways.envoy_alone, gateways.empty_server]
        makes.append(gateways.ours)
        with contextlib.ExitStack() as stack:
            if arguments.workers:
                redis = stack.enter_context(_started(Redis(directory)))
                for workers in (1, arguments.workers):
                    name = f"ours, Redis, {workers} workers"
                    makes.append(
                        partial(gateways.ours, workers=workers, index=f"{redis.url}?budget_ms=5000", name=name)
                    )
            if arguments.peers:
                makes += [partial(gateways.peer, *words) for words in PEERS]
            systems = [await asyncio.to_thread(stack.enter_context, make(directory, engines)) for make in makes]
            for size in arguments.sizes:
                for kind in arguments.kinds:
                    for clients in arguments.clients:
                        case = Case(size, kind, clients)
                        table(case, await rows(systems, case, arguments.rounds))


@contextlib.contextmanager
def _started(redis: Redis) -> Iterator[Redis]:
    redis.start()
    try:
        redis.wait_ready()
        yield redis
    finally:
        redis.stop()


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="default %(default)s")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    kinds = ["follow-up", "first sight"]
    parser.add_argument("--kinds", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 32], help="at a time, default 1 32")
    parser.add_argument("--peers", action="store_true", help="beside vllm-router and smg (bench/peers.py)")
    parser.add_argument("--workers", type=int, default=0, help="also so many workers, and one, with Redis")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        uvloop.run(compare(arguments, Path(directory)))


if __name__ == "__main__":
    main()
