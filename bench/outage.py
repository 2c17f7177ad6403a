"""What an outage costs: `python -m bench.outage redis flush follower flood`, or some of them.

Real Envoy, real Redis, four simulated engines, agent sessions at a steady rate; the budget of a decision is the 20 ms
that operators get.

redis     Redis hangs for --stop seconds (SIGSTOP) and goes on. Decision times before, meanwhile and after.
flush     FLUSHALL under load.
follower  the process that follows the events is killed, five times: alone, where `serve` starts it again, and beside a
          second router. How long does it take until what each engine cached right after the kill is known?
flood     memory://: one publisher sends more than can be followed, for --flood seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import yaml
import zmq
from redis import Redis

from bench.soak import Tally, agents, workload
from extproc.app.workers import STRIDE
from loadgen.stack.parts import get
from loadgen.stack.stack import Stack

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the tests' helpers are not installed
from tests.support.agents import WORD, chat, until  # noqa: E402
from tests.support.redis_server import RedisServer, redis_server  # noqa: E402
from tests.support.routers import all_followed, directly, follower_of, hit  # noqa: E402

ENGINES = 4
ENGINE_OPTIONS = ("--time-scale", "0.3")
LONGEST_MIN = 15.0  # minutes of load that are drawn
AROUND_S = 10.0  # of steady load before and after
KILLS = 5
FLOOD_BATCH, FLOOD_CYCLE = 64, 500  # blocks a batch, batches until the cache is cleared
FLOOD_BLOCKS = 500_000  # a second: five times what one core follows


@asynccontextmanager
async def steady(stack: Stack, rate: float) -> AsyncIterator[Tally]:
    """Sessions within the block."""
    tally = Tally()
    load = asyncio.create_task(agents(stack, workload(LONGEST_MIN, rate), tally))
    try:
        yield tally
    finally:
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)


def phases(stack: Stack, marks: Mapping[str, float]) -> None:
    """A table of the decisions of each phase; `marks` says when each begins, in seconds of the wall clock."""
    begins = list(marks.items())
    found: dict[str, list[Mapping[str, Any]]] = {name: [] for name in marks}
    for entry in stack.access_log():
        at = datetime.fromisoformat(entry["time"]).timestamp()
        phase = next((name for name, begin in reversed(begins) if at >= begin), None)
        if phase and entry["smetric"]:
            found[phase].append(entry["smetric"])
    print(f"{'':>10}  requests  decision p50 ms    p99 ms    max ms  reasons")
    for name, made in found.items():
        times = sorted(float(one["decision_ms"]) for one in made)
        if len(times) < 2:
            continue
        quantiles = statistics.quantiles(times, n=100, method="inclusive")
        figures = f"{len(times):>8}  {quantiles[49]:>15.2f}  {quantiles[98]:>8.2f}  {times[-1]:>8.2f}"
        reasons = ", ".join(f"{reason} {count}" for reason, count in Counter(m["reason"] for m in made).most_common())
        print(f"{name:>10}  {figures}  {reasons}")


async def redis_hangs(stack: Stack, server: RedisServer, rate: float, stop_s: float) -> None:
    """See the module."""
    print(f"\nredis: stopped for {stop_s:g} s at {rate:g} requests a second")
    async with steady(stack, rate) as tally:
        marks = {"warm-up": time.time()}
        await asyncio.sleep(AROUND_S)
        marks["before"] = time.time()
        await asyncio.sleep(AROUND_S)
        marks["stopped"] = time.time()
        server.pause()
        await asyncio.sleep(max(0.0, stop_s - 2))
        missed = chat(("system", f"missed {WORD * 20}"), ("user", "hello"))
        for engine in stack.engines:
            await directly(engine, missed)
        await asyncio.sleep(2)
        server.resume()
        marks["after"] = back = time.time()
        await until(lambda: all(hit(stack, engine, missed) for engine in stack.engines), 60)
        print(f"all that was cached meanwhile is known {time.time() - back:.2f} s after its return")
        await until(lambda: states(stack) == {"exact"}, 60)
        print(f"all instances exact {time.time() - back:.2f} s after its return")
        await asyncio.sleep(AROUND_S)
    phases(stack, marks)
    print(f"failed requests: {tally.failed} of {tally.failed + tally.served} {tally.errors or ''}")


async def redis_flushed(stack: Stack, server: RedisServer, rate: float) -> None:
    """See the module."""
    print(f"\nflush: FLUSHALL at {rate:g} requests a second")
    body = chat(("system", f"flushed {WORD * 20}"), ("user", "hello"))
    async with steady(stack, rate) as tally:
        marks = {"before": time.time()}
        await asyncio.sleep(AROUND_S)
        for engine in stack.engines:
            await directly(engine, body)
        await until(lambda: all(hit(stack, engine, body) for engine in stack.engines))
        with Redis.from_url(server.url) as client:
            client.flushall()
        marks["flushed"] = begun = time.time()
        await until(lambda: all(hit(stack, engine, body) for engine in stack.engines), 60)
        print(f"the index is filled again after {time.time() - begun:.2f} s")
        marks["after"] = time.time()
        await asyncio.sleep(AROUND_S)
    phases(stack, marks)
    print(f"failed requests: {tally.failed} of {tally.failed + tally.served} {tally.errors or ''}")


async def follower_dies(stack: Stack, label: str) -> None:
    """See the module."""
    times = []
    for _ in range(KILLS):
        await all_followed(stack, 60)
        await asyncio.sleep(2)
        os.kill(follower_of(stack), signal.SIGKILL)
        killed = time.monotonic()
        await all_followed(stack, 60)
        times.append(time.monotonic() - killed)
        await asyncio.sleep(5)
    print(f"\nfollower: killed, {label}: known again after {', '.join(f'{one:.1f}' for one in times)} s")


def states(stack: Stack) -> set[str]:
    """What is known of the instances."""
    pools = stack.state()["pools"].values()
    return {instance["events"]["state"] for pool in pools for instance in pool["instances"].values()}


async def flooded(rate: float, flood_s: float) -> None:
    """See the module."""
    publisher = subprocess.Popen(
        [sys.executable, "-m", "bench.outage", "--publish", str(flood_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert publisher.stdout is not None
    assert publisher.stdin is not None
    try:
        address = publisher.stdout.readline().decode().strip()
        stack = Stack(ENGINES, engine_options=ENGINE_OPTIONS)
        victim = stack.engines[-1].address
        replace_events(stack, address)
        with stack:
            print(f"\nflood: {FLOOD_BLOCKS:,} blocks a second for {flood_s:g} s, memory://, {rate:g} requests a second")
            async with steady(stack, rate) as tally:
                marks = {"warm-up": time.time()}
                await asyncio.sleep(AROUND_S)
                marks["before"] = time.time()
                await asyncio.sleep(AROUND_S)
                before = applied(stack, victim)
                marks["flood"] = time.time()
                publisher.stdin.write(b"go\n")
                publisher.stdin.flush()
                sent = await asyncio.to_thread(publisher.stdout.readline)
                took, taken = time.time() - marks["flood"], applied(stack, victim) - before
                marks["after"] = time.time()
                await asyncio.sleep(AROUND_S)
            print(f"sent {int(sent) / took:,.0f} blocks a second, of which {taken / took:,.0f} were followed")
            phases(stack, marks)
            print(f"failed requests: {tally.failed} of {tally.failed + tally.served} {tally.errors or ''}")
    finally:
        publisher.kill()
        publisher.wait()


def replace_events(stack: Stack, address: str) -> None:
    """Let the last engine's events come from elsewhere, without a replay."""
    root = yaml.safe_load(stack.envoy_yaml.read_text("utf-8"))
    cluster = next(one for one in root["static_resources"]["clusters"] if one["name"] == "engines")
    metadata = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][-1]["metadata"]["filter_metadata"]["smetric"]
    metadata["kv_events"] = address
    del metadata["kv_replay"]
    stack.envoy_yaml.write_text(yaml.dump(root, sort_keys=False), "utf-8")


def applied(stack: Stack, instance: str) -> float:
    """Blocks of an instance that were read of its events: the child says so that follows them, beside one worker."""
    host, _, port = stack.metrics_url.rpartition(":")
    lines = (get(f"{host}:{int(port) + STRIDE}/metrics") or b"").decode().splitlines()
    mine = (line for line in lines if line.startswith("smetric_event_blocks_total{") and instance in line)
    return sum(float(line.rpartition(" ")[2]) for line in mine)


def publish(seconds: float) -> None:
    """Announce an address, clear every moment until told to go, then flood; prints how many blocks were sent."""
    encode = msgspec.msgpack.encode
    cleared = encode([time.time(), [{"type": "AllBlocksCleared"}], 0])
    batches = []
    for number in range(FLOOD_CYCLE):
        stored = {
            "type": "BlockStored",
            "block_hashes": [number * FLOOD_BATCH + block + 1 for block in range(FLOOD_BATCH)],
            "parent_block_hash": None,
            "token_ids": [(7 * place + number) % 200 for place in range(16 * FLOOD_BATCH)],
            "block_size": 16,
            "lora_id": None,
            "medium": "GPU",
        }
        batches.append(encode([time.time(), [stored], 0]))
    with zmq.Context() as context, context.socket(zmq.PUB) as socket:
        print(f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}", flush=True)
        poller = zmq.Poller()
        poller.register(sys.stdin.fileno(), zmq.POLLIN)
        numbers = itertools.count()
        while not poller.poll(200):
            socket.send_multipart([b"", next(numbers).to_bytes(8, "big"), cleared])
        started, sent = time.monotonic(), 0
        while (elapsed := time.monotonic() - started) < seconds:
            if sent * FLOOD_BATCH > elapsed * FLOOD_BLOCKS:
                time.sleep(0.001)
                continue
            if sent % FLOOD_CYCLE == 0:
                socket.send_multipart([b"", next(numbers).to_bytes(8, "big"), cleared])
            socket.send_multipart([b"", next(numbers).to_bytes(8, "big"), batches[sent % FLOOD_CYCLE]])
            sent += 1
        print(sent * FLOOD_BATCH, flush=True)
        sys.stdin.read()


async def run(options: argparse.Namespace) -> None:
    """The chosen outages, one after the other."""
    with redis_server(*([options.redis_program] if options.redis_program else [])) as server:
        if {"redis", "flush"} & set(options.outages):
            with Stack(ENGINES, index=server.url, engine_options=ENGINE_OPTIONS) as stack:
                if "redis" in options.outages:
                    await redis_hangs(stack, server, options.rate, options.stop)
                if "flush" in options.outages:
                    await redis_flushed(stack, server, options.rate)
        if "follower" in options.outages:
            with Stack(ENGINES, index=server.url) as stack:
                await follower_dies(stack, "`serve` starts it again")
                with Stack(beside=stack):
                    await asyncio.sleep(5)
                    await follower_dies(stack, "another router beside it")
    if "flood" in options.outages:
        await flooded(options.rate, options.flood)


def main() -> None:
    """Run them."""
    outages = ["redis", "flush", "follower", "flood"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outages", nargs="*", metavar="OUTAGE", default=outages, help="default: all of them")
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second, default %(default)g")
    parser.add_argument("--stop", type=float, default=30.0, metavar="S", help="default %(default)g")
    parser.add_argument("--flood", type=float, default=20.0, metavar="S", help="default %(default)g")
    parser.add_argument("--redis-program", metavar="PATH", help="redis-server to use, default: the one from PyPI")
    parser.add_argument("--publish", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.publish:
        publish(options.publish)
        return
    print(f"machine's load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    asyncio.run(run(options))
    print(f"machine's load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
