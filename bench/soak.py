"""Does memory stay flat? Sessions for minutes while everything churns: `python -m bench.soak --minutes 10`.

Agent sessions go through a real Envoy to four simulated engines whose caches hold a few sessions each, so that blocks
are stored and evicted all the time. Meanwhile engines are killed and started again, caches are emptied, and clients
give up on requests halfway. Sampled are the resident memory of every extproc process, Redis's own, the size of the
index, the load that the router counts and the requests that failed. Each minute prints a row. The verdict compares an
early tenth of the samples, after a warm-up of another tenth, with the last one: memory may have grown by 3 %; at the
end no load may be left.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
from redis import Redis

from bench import ending
from loadgen.engine.options import MODEL_DIR
from loadgen.replay.chat_request import CHAT
from loadgen.replay.replay import UNFINISHED, Options
from loadgen.replay.run import Gateway, play
from loadgen.replay.words import Words
from loadgen.results.records import Row
from loadgen.stack.stack import MEMORY, REDIS, Stack
from loadgen.workloads.profiles import PROFILES, fixed, lognormal
from loadgen.workloads.synthetic import generate_whole
from loadgen.workloads.trace import Trace

ENGINES = 4
BLOCKS = 2500  # of 16 tokens: about 160 KB of text an engine, filled within half a minute
TURNS = 6
SYSTEM, TEXT, REPLY = 2_700, 750, 32  # tokens; each session has words of its own
KILL_EVERY_S, CLEAR_EVERY_S, ABORT_EVERY_S = 45.0, 20.0, 1.0
SAMPLE_EVERY_S = 5.0
PRINT_EVERY_S = 60.0
FLAT = 0.03  # growth that allocators explain
SETTLE_S = 30.0  # for what is under way at the end


@dataclass(slots=True)
class Tally:
    """What became of the requests so far."""

    served: int = 0
    failed: int = 0
    aborted: int = 0
    kills: int = 0
    clears: int = 0
    errors: dict[str, int] = field(default_factory=dict)

    def note(self, row: Row) -> None:
        """Count one answer."""
        if row.ok:
            self.served += 1
        elif row.error != UNFINISHED:  # the end of the soak
            self.failed += 1
            cause = str(row.error)[:120]
            self.errors[cause] = self.errors.get(cause, 0) + 1


Sample = dict[str, float]  # by column; MB, blocks, requests


def workload(minutes: float, rate: float) -> Trace:
    """Sessions that begin steadily, about `rate` requests a second in all.

    Whole answers: until one comes, Envoy may retry elsewhere, so that a killed engine costs no request.
    """
    text = lognormal(TEXT, 0.25, most=1.5 * TEXT, least=0.5 * TEXT)
    profile = replace(
        PROFILES["demo"],
        turns=fixed(TURNS),
        shared=(),
        private=SYSTEM,
        first=text,
        single=text,
        append=text,
        output=fixed(REPLY),
    )
    trace = generate_whole(profile, sessions=round(60 * minutes * rate / TURNS) + 1, rate=rate, seed=0)
    return replace(trace, requests=[replace(request, stream=False) for request in trace.requests])


async def agents(stack: Stack, trace: Trace, tally: Tally) -> None:
    """Agents at work, until cancelled."""
    gateway = Gateway(url=stack.url, headers={}, timeout_s=60.0)
    await play(gateway, trace, Words(trace, MODEL_DIR), Options(), tally.note)


async def aborts(stack: Stack, rng: random.Random, tally: Tally) -> None:
    """Clients that give up: streamed requests, left after a moment."""
    while True:
        messages = [{"role": "user", "content": f"{rng.random()} {'give up ' * 500}"}]
        body = json.dumps({"messages": messages, "max_tokens": 2_000, "stream": True}).encode()
        timeout = aiohttp.ClientTimeout(total=rng.uniform(0.01, 0.5))
        headers = {"content-type": "application/json"}
        async with aiohttp.ClientSession(timeout=timeout) as http:
            with contextlib.suppress(TimeoutError, aiohttp.ClientError):
                async with http.post(stack.url + CHAT, data=io.BytesIO(body), headers=headers) as answer:
                    await answer.read()
        tally.aborted += 1
        await asyncio.sleep(ABORT_EVERY_S)


async def kills(stack: Stack, rng: random.Random, tally: Tally) -> None:
    """Engines that crash and come back empty."""
    while True:
        await asyncio.sleep(KILL_EVERY_S)
        engine = rng.choice(stack.engines)
        await asyncio.to_thread(engine.kill)
        await asyncio.sleep(3)
        await asyncio.to_thread(engine.restart)
        tally.kills += 1


async def clears(stack: Stack, rng: random.Random, tally: Tally) -> None:
    """Caches that are emptied by hand, where no request runs."""
    while True:
        await asyncio.sleep(CLEAR_EVERY_S)
        tally.clears += await asyncio.to_thread(rng.choice(stack.engines).reset_cache)


def processes(stack: Stack) -> Iterator[tuple[str, int]]:
    """Every extproc process with its name: `serve` and its children."""
    assert stack.extproc is not None
    pid = stack.extproc.pid
    if pid is None:
        return
    yield "serve", pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for child in map(int, children):
        arguments = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        reads = b"extproc.app.reader" in arguments
        yield ("follow" if b"follow" in arguments else "reader" if reads else f"worker {child}"), child


def resident_mb(pid: int) -> float:
    """Resident memory of a process, MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1024


def sample(stack: Stack, redis: Redis | None, tally: Tally, started: float) -> Sample:
    """One row of the table."""
    row: Sample = {"s": time.monotonic() - started}
    for name, pid in processes(stack):
        row[f"{name} MB"] = resident_mb(pid)
    if redis is not None:
        row["redis MB"] = redis.info("memory")["used_memory"] / 2**20
    pools = stack.state().get("pools", {})
    instances = [instance for pool in pools.values() for instance in pool["instances"].values()]
    row["blocks"] = sum(instance["index_blocks"] or 0 for instance in instances)
    row["load"] = sum(instance["in_flight"] for instance in instances)
    row["exact"] = sum((instance["events"] or {}).get("state") == "exact" for instance in instances)
    row |= {"served": tally.served, "failed": tally.failed, "aborted": tally.aborted}
    row |= {"kills": tally.kills, "clears": tally.clears}
    return row


async def sampled(stack: Stack, redis: Redis | None, tally: Tally, rows: list[Sample]) -> None:
    """Sample until cancelled, and print a row now and then."""
    started = time.monotonic()
    printed = -PRINT_EVERY_S
    while True:
        row = await asyncio.to_thread(sample, stack, redis, tally, started)
        if not rows:
            print("  ".join(f"{column:>10}" for column in row))
        rows.append(row)
        if row["s"] - printed >= PRINT_EVERY_S:
            printed = row["s"]
            show(rows[0], row)
        await asyncio.sleep(SAMPLE_EVERY_S)


async def soak(stack: Stack, redis: Redis | None, minutes: float, rate: float) -> tuple[list[Sample], Tally]:
    """Run everything for so long; then wait until nothing is under way."""
    rng, tally, rows = random.Random(1), Tally(), list[Sample]()
    jobs = [
        asyncio.create_task(job)
        for job in (
            sampled(stack, redis, tally, rows),
            agents(stack, workload(minutes, rate), tally),
            aborts(stack, rng, tally),
            kills(stack, rng, tally),
            clears(stack, rng, tally),
        )
    ]
    done, _ = await asyncio.wait(jobs, timeout=60 * minutes, return_when=asyncio.FIRST_EXCEPTION)
    for job in jobs:
        job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)
    for job in done:
        job.result()  # the churn itself broke
    deadline = time.monotonic() + SETTLE_S
    last = sample(stack, redis, tally, 0.0)
    while last["load"] and time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        last = sample(stack, redis, tally, 0.0)
    rows.append({**last, "s": rows[-1]["s"] + SAMPLE_EVERY_S})
    return rows, tally


def show(columns: Sample, row: Sample) -> None:
    """Print one row in the order of these columns, at once: a soak is watched while it runs."""
    figures = (f"{row.get(column, float('nan')):>10.{1 if 'MB' in column else 0}f}" for column in columns)
    print("  ".join(figures), flush=True)


def verdict(rows: list[Sample], tally: Tally) -> bool:
    """Print the growth of each figure that must not grow; whether all is well."""
    tenth = max(1, len(rows) // 10)
    well = True
    for column in (column for column in rows[-1] if "MB" in column):
        first, last = (
            statistics.mean(row[column] for row in part if column in row)
            for part in (rows[tenth : 2 * tenth], rows[-1 - tenth : -1])
        )
        growth = last / first - 1 if first else 0.0
        well &= growth <= FLAT
        print(f"{column:>10}: {first:10.1f} early, {last:10.1f} at the end, {growth:+.1%}")
    for cause, times in tally.errors.items():
        print(f"failed {times} times: {cause}")
    left = rows[-1]["load"]
    print(f"load left at the end: {left:.0f}; requests failed: {tally.failed} of {tally.served + tally.failed}")
    well &= not left and not tally.failed
    print("verdict: flat, nothing lost" if well else "verdict: NOT well")
    return well


def main() -> int:
    """Run it; the exit status says whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="default %(default)g")
    parser.add_argument("--rate", type=float, default=15.0, help="requests a second, default %(default)g")
    parser.add_argument("--index", choices=["redis", "memory"], default="redis", help="default %(default)s")
    parser.add_argument("--redis-program", metavar="PATH", help="redis-server to use, default: the one from PyPI")
    options = parser.parse_args()
    engine_options = ["--blocks", str(BLOCKS), "--max-model-len", "32000", "--time-scale", "0.3"]
    index = REDIS if options.index == "redis" else MEMORY
    with Stack(ENGINES, index=index, redis_program=options.redis_program, engine_options=engine_options) as stack:
        redis = Redis.from_url(stack.index_url.partition("?")[0]) if index == REDIS else None
        load = Path("/proc/loadavg").read_text().split()[0]
        print(f"{options.minutes:g} minutes, {options.rate:g} requests a second, index {index}; machine's load {load}")
        rows, tally = asyncio.run(soak(stack, redis, options.minutes, options.rate))
        if redis is not None:
            redis.close()
        show(rows[0], rows[-1])
        print(f"machine's load at the end {Path('/proc/loadavg').read_text().split()[0]}")
        return 0 if verdict(rows, tally) else 1


if __name__ == "__main__":
    ending.run(main)
