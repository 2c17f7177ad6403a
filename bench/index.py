"""Time of a match, rate of writes and size of an entry, in memory and in Redis: `python bench/index.py`.

Pools of 32, 256 and 1,024 instances hold 490,000 prompt blocks between them. All instances share a system prompt of 160
blocks (40 KB), and one follow-up of 1,600 blocks (400 KB) is matched: one instance has all of it, one has half. Matches
are the best of several medians; compare figures of one run, because the machine is shared. Small writes are keys a
second of 32 followers that each write one small event after the other, and the engine blocks of 16 tokens in them.
Redis is started for this on a free port.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from bench import ending
from extproc.index import Change, Index
from extproc.index.memory import MemoryIndex
from extproc.index.redis import RedisIndex

sys.path.insert(0, str(Path(__file__).parent.parent))  # the tests' servers are not installed
from tests.support.redis_server import BINARIES, RedisServer, redis_server

ENTRIES = 490_000
SHARED = 160
PROMPT = 1600
SIZES = (32, 256, 1024)
MATCHES = 500
ROUNDS = 5
EVENT_KEYS = 2  # prompt blocks of one event: a step of chunked prefill stores hundreds, one of decoding less than one
BULK_KEYS = 512
ENGINE_BLOCKS = 4  # of 16 tokens, in a prompt block of 256 bytes

random_ = random.Random(1)


def keys(count: int) -> list[int]:
    return [random_.getrandbits(64) for _ in range(count)]


def name(number: int) -> str:
    return f"10.0.{number // 250}.{number % 250}:8000"


async def fill(index: Index, instances: int) -> tuple[list[int], float]:
    """The prompt to match, and keys written a second."""
    shared = keys(SHARED)
    own = [keys(ENTRIES // instances) for _ in range(instances)]
    started = time.perf_counter()
    for number in range(instances):
        for start in range(0, len(own[number]), BULK_KEYS):
            await index.apply([Change("pool", name(number), add=own[number][start : start + BULK_KEYS])])
    rate = instances * len(own[0]) / (time.perf_counter() - started)
    await index.apply([Change("pool", name(number), add=shared) for number in range(instances)])
    chain = shared + keys(PROMPT - SHARED)
    await index.apply([Change("pool", name(0), add=chain), Change("pool", name(1), add=chain[: PROMPT // 2])])
    return chain, rate


async def match_us(index: Index, chain: list[int]) -> float:
    times = []
    for _ in range(MATCHES):
        started = time.perf_counter()
        await index.match("pool", chain)
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


async def events(index: Index) -> float:
    """Keys a second when 32 followers write small events one after the other, each its own."""
    per_follower = 400

    async def follow(number: int) -> None:
        for _ in range(per_follower):
            await index.apply([Change("events", name(number), add=keys(EVENT_KEYS))])

    started = time.perf_counter()
    await asyncio.gather(*(follow(number) for number in range(32)))
    return 32 * per_follower * EVENT_KEYS / (time.perf_counter() - started)


async def forget_us(index: Index) -> float:
    """Time to forget an instance that holds the most."""
    started = time.perf_counter()
    await index.apply([Change("pool", name(0), forget=True)])
    return (time.perf_counter() - started) * 1e6


async def measure(label: str, make: Callable[[int], Index], bytes_a_key: Callable[[int], float]) -> None:
    indexes = {instances: make(instances) for instances in SIZES}
    filled = {instances: await fill(index, instances) for instances, index in indexes.items()}
    best = dict.fromkeys(SIZES, float("inf"))
    for _ in range(ROUNDS):  # in turns, so that all meet the same disturbances
        for instances, index in indexes.items():
            best[instances] = min(best[instances], await match_us(index, filled[instances][0]))
    for instances, index in indexes.items():
        size, small, forget = bytes_a_key(instances), await events(index), await forget_us(index)
        print(
            f"{label:10} {instances:9} {best[instances]:9.1f} {best[instances] / best[SIZES[0]]:8.2f} "
            f"{filled[instances][1]:12,.0f} {small:13,.0f} {small * ENGINE_BLOCKS:12,.0f} {forget:10.0f} {size:9.1f}"
        )
        await index.close()


async def memory() -> None:
    tracemalloc.start()
    index = MemoryIndex()
    held = keys(ENTRIES)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    await index.apply([Change("pool", name(0), add=held)])
    size = (tracemalloc.get_traced_memory()[0] - before) / ENTRIES
    tracemalloc.stop()
    await measure("memory", lambda _: MemoryIndex(), lambda _: size)


def redis(label: str, server: RedisServer) -> None:
    def make(instances: int) -> Index:
        return RedisIndex.from_url(f"{server.url}?budget_ms=5000&namespace=of{instances}")

    def size(instances: int) -> float:
        blocks = f"of{instances}:1:{{pool}}:blocks"
        used = int(server.send("MEMORY", "USAGE", blocks, "SAMPLES", "0")[1:])
        return used / int(server.send("HLEN", blocks)[1:])

    asyncio.run(measure(label, make, size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    print("backend    instances  match us to first   bulk keys/s small writes/s engine blk/s  forget us bytes/key")
    asyncio.run(memory())
    for label, binary in BINARIES.items():
        with redis_server(binary) as server:
            redis(label, server)


if __name__ == "__main__":
    ending.run(main)
