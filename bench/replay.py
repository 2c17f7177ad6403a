"""Whether one `loadgen replay` process keeps its arrivals while many sessions stream.

    python bench/replay.py                                    200 sessions at a time, prompts of 16,000 to 22,000 tokens
    python bench/replay.py --streams 100,200,400 --tpot-ms 20

A server in another process answers any chat with a token every --tpot-ms, and computes nothing; the replay runs as its
users run it, in a process of its own. Sessions arrive evenly over START_S seconds; from then on as many stream at once
as were asked for, but for their gaps. What is late was sent over 50 ms after its time.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import cast

import uvloop

from loadgen.results.records import Row, read_rows
from loadgen.stack.processes import free_port, listens
from loadgen.workloads.trace import Trace, TraceRequest
from loadgen.workloads.traces import own_jsonl

HOST = "127.0.0.1"
BLOCK = 64  # tokens
SYSTEM, ADDED = 14_400, 2_000  # tokens
TURNS = 4
GAP_S = 0.3
START_S = 8.0
REPLY_S = 8.0  # of streaming, on average

PHASES = 8  # as many engines
_phases = itertools.cycle(range(PHASES))

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nx-engine: 127.0.0.1:1\r\n\r\n"
)
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}\n\ndata: [DONE]\n\n'


class Stream(asyncio.Protocol):
    """One connection: reads a request, and is then ticked until its reply is whole."""

    def __init__(self, streaming: set[Stream]) -> None:
        self._streaming = streaming
        self._asked = bytearray()
        self.phase = next(_phases)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._streaming.discard(self)

    def data_received(self, data: bytes) -> None:
        self._asked += data
        head = self._asked.find(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", self._asked[: head + 2], re.IGNORECASE)
        if head < 0 or len(self._asked) < head + 4 + int(length[1] if length else 0):
            return
        wanted = re.search(rb'"max_tokens":(\d+)', self._asked)
        self._left = self._tokens = int(wanted[1]) if wanted else 0
        self._asked.clear()
        if wanted:
            self._transport.write(HEAD)
            self._streaming.add(self)
        else:
            self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")

    def tick(self) -> None:
        self._left -= 1
        self._transport.write(_chunk(TOKEN))
        if self._left <= 0:
            self._transport.write(_chunk(USAGE % (1, self._tokens)) + _chunk(b""))
            self._streaming.discard(self)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def _serve(port: int, tpot: float) -> None:
    streaming: set[Stream] = set()
    await asyncio.get_running_loop().create_server(lambda: Stream(streaming), HOST, port)
    due = time.monotonic()
    for phase in itertools.cycle(range(PHASES)):  # engines are not in step with each other
        due += tpot / PHASES
        await asyncio.sleep(due - time.monotonic())
        for stream in [stream for stream in streaming if stream.phase == phase]:
            stream.tick()


def serve(port: int, tpot: float) -> None:
    uvloop.run(_serve(port, tpot))


def workload(streams: int, tpot: float, seed: int = 0) -> Trace:
    """As many sessions as are to stream at a time, all of TURNS turns."""
    rng = random.Random(seed)
    requests = []
    for number in range(streams):
        tokens, parent, at, base = SYSTEM, None, START_S * number / streams, (number + 1) * 10_000
        for turn in range(TURNS):
            output = max(1, round(rng.uniform(0.5, 1.5) * REPLY_S / tpot))
            full = (tokens + ADDED) // BLOCK
            requests.append(
                TraceRequest(
                    id=f"s{number}/{turn}",
                    session=f"s{number}",
                    turn=turn,
                    arrival_s=at,
                    input=tokens + ADDED,
                    output=output,
                    blocks=((0, SYSTEM // BLOCK), (base, full - SYSTEM // BLOCK)),
                    parent=parent,
                    gap_s=GAP_S if parent else None,
                    system=SYSTEM,
                    history=tokens if turn else 0,
                )
            )
            parent, tokens, at = f"s{number}/{turn}", tokens + ADDED + output, at + REPLY_S + GAP_S
    return Trace("bench", BLOCK, sorted(requests, key=lambda request: request.arrival_s))


def measure(streams: int, tpot: float) -> tuple[list[Row], float, float]:
    """Rows of a replay, CPU seconds of its process, and how long it took."""
    port = free_port()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(port, tpot), daemon=True)
    server.start()
    try:
        while not listens(port):
            assert server.is_alive()
            time.sleep(0.05)
        with tempfile.TemporaryDirectory() as directory:
            trace = Path(directory) / "trace.jsonl"
            with trace.open("wb") as file:
                own_jsonl.write(workload(streams, tpot), file)
            out = Path(directory) / "out"
            arguments = [
                sys.executable,
                "-m",
                "loadgen",
                "replay",
                trace,
                "--url",
                f"http://{HOST}:{port}",
                "--out",
                out,
            ]
            before, began = os.times(), time.monotonic()
            subprocess.run(list(map(str, arguments)), check=True, stdout=subprocess.DEVNULL)
            after = os.times()
            cpu = after.children_user - before.children_user + after.children_system - before.children_system
            return list(read_rows(out)), cpu, time.monotonic() - began
    finally:
        server.terminate()
        server.join()


def report(streams: int, rows: list[Row], cpu: float, wall: float) -> str:
    assert all(row.ok for row in rows)
    late = sorted(row.sent_s - row.due_s for row in rows)
    edges = sorted([(row.sent_s, 1) for row in rows] + [(row.end_s or 0.0, -1) for row in rows])
    open_now = most = 0
    area = before = 0.0
    for at, step in edges:
        if START_S <= at <= START_S + REPLY_S * (TURNS - 1):
            area += open_now * (at - max(before, START_S))
        before, open_now = at, open_now + step
        most = max(most, open_now)
    mean = area / (REPLY_S * (TURNS - 1))
    tokens = sum(row.produced for row in rows)
    share = sum(one > 0.05 for one in late) / len(late)
    p99 = late[int(0.99 * (len(late) - 1))]
    return (
        f"{streams:>8} {mean:>7.0f} {most:>5} {len(rows):>8} {tokens / (rows[-1].end_s or wall):>9.0f} {share:>9.2%} "
        f"{p99 * 1000:>7.1f} ms {late[-1] * 1000:>7.1f} ms {cpu / wall:>6.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="200", help="one or more, separated by commas (%(default)s)")
    parser.add_argument("--tpot-ms", type=float, default=30.0, help="(%(default)s)")
    args = parser.parse_args()
    print(f"load average of {os.cpu_count()} cores before: {os.getloadavg()[0]:.1f}")
    print("sessions    mean  most requests  tokens/s      late        p99      worst   core")
    for streams in map(int, args.streams.split(",")):
        print(report(streams, *measure(streams, args.tpot_ms / 1000)), flush=True)


if __name__ == "__main__":
    main()
