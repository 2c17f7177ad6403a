"""Where a decision's CPU goes: `python -m bench.profile`. One table for each API, stage by stage, that adds up.

The whole is the CPU of the real server's process for one request (three messages over real gRPC, as Envoy sends them).
The stages are timed in this process, on the same bytes and with the same parts; `bookkeeping` is what a pass through
all of them takes beyond their sum, and `gRPC, asyncio` what the server's process takes beyond such a pass. The second
column counts in requests of the least server, which answers without looking: only gRPC, protobuf and asyncio.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc

from bench.chat import body
from bench.decision import ROOT, configuration, cpu_s, free_ports, messages, requests, wait
from bench.prompt import by_api
from extproc import config
from extproc.app.pools import pool_of
from extproc.base import blocks
from extproc.config.settings import instances
from extproc.index.memory import MemoryIndex
from extproc.processor import destination, wire
from extproc.processor.messages import Continue, Phase
from extproc.processor.prefiller import Prefiller
from extproc.processor.routes import Routes
from extproc.processor.server import Processor
from extproc.processor.stream import Services
from extproc.requests import apis
from extproc.routing import digests
from extproc.routing.pools.loads import Loads
from extproc.routing.query import Ask, read
from extproc.routing.router import Router

Stage = Callable[[], object]


class Context:
    """What a stream asks of gRPC, with the messages of one exchange."""

    def __init__(self, sent: list[bytes]) -> None:
        self._sent = iter(sent)

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("x-smetric-cluster", "engines"),)

    async def read(self) -> object:
        message = next(self._sent, None)
        return grpc.aio.EOF if message is None else wire.decode(message)


class Rig:
    """The parts of a decision, wired as `serve` wires them, without a server."""

    def __init__(self, yaml: Path) -> None:
        settings = config.load(yaml)
        pool = settings.pools["engines"]
        self.pool, self.index, self.loads = pool_of(pool), MemoryIndex(), Loads()
        self.pool.instances = [
            instance for endpoint in pool.endpoints for instance in instances(endpoint, endpoint.host)
        ]
        self.router = Router(self.index, self.loads)
        pools = {self.pool.name: self.pool}
        self.routes = Routes(settings.default)
        self.processor = Processor(Services(self.router, pools, self.routes, lambda *_: None, Prefiller()))

    async def exchange(self, sent: list[bytes]) -> None:
        """One stream, from bytes to bytes."""
        async for answer in self.processor.process(None, Context(sent)):
            wire.encode(answer)

    def stages(self, path: str, payload: bytes, sent: list[bytes]) -> Iterator[tuple[str, Stage]]:
        """What a request goes through, each stage with what the one before it made."""
        pool, router = self.pool, self.router
        request = apis.parse(path, payload)
        prompt = pool.renderer.render(request)
        data, root = prompt.data[: prompt.matchable], blocks.root(pool.name)
        chain = blocks.extend(data, root, pool.block_bytes)
        query = read(pool, {}, Ask(path, payload))
        route = self.routes((("x-smetric-cluster", "engines"),))
        decision = router.decide(pool, route, query, {}, now=0.0)
        decision.ticket.release()
        routing = destination.to(decision.choice, 1.0, digests=digests.told(query, pool.block_bytes))

        def decide() -> None:
            router.decide(pool, route, query, {}, now=0.0).ticket.release()

        yield "protobuf in", lambda: [wire.decode(message) for message in sent]
        yield "JSON, normalise", lambda: apis.parse(path, payload)
        yield "template, bytes, NFC", lambda: pool.renderer.render(request)
        yield "keys", lambda: blocks.extend(data, root, pool.block_bytes)
        yield "index", lambda: _driven(self.index.match(pool.name, chain))
        yield "policy, loads", decide
        yield "answer", lambda: wire.encode(Continue(Phase.REQUEST_BODY, routing))


def _driven(work: Any) -> None:
    """Run a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits for something")


def ms_each(work: Stage, seconds: float) -> float:
    """CPU milliseconds of one call: the least of several rounds, for what disturbs only adds."""
    work()
    count, best = 1, float("inf")
    deadline = time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < deadline:
        began = time.process_time()
        for _ in range(count):
            work()
        spent = time.process_time() - began
        if spent < 0.02:
            count *= 2
        else:
            best = min(best, spent / count)
    return best * 1000


def served(payload: bytes, path: str, yaml: Path, count: int, rounds: int) -> tuple[float, float]:
    """CPU milliseconds a request of the real server's process, and of the least server's; rounds alternate."""
    ports = free_ports(4)
    ours, empty = f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}"
    serve = [sys.executable, "-m", "extproc", "serve", "--log-level", "warning", "--envoy-yaml", str(yaml)]
    serve += ["--no-follow", "--listen", ours, "--health", f"127.0.0.1:{ports[2]}"]
    serve += ["--metrics", f"127.0.0.1:{ports[3]}"]
    commands = {ours: serve, empty: [sys.executable, str(ROOT / "bench" / "empty_server.py"), empty]}
    running = {target: subprocess.Popen(command, cwd=ROOT) for target, command in commands.items()}
    spent: dict[str, list[float]] = {ours: [], empty: []}
    try:
        for target, process in running.items():
            wait(process, target)
            asyncio.run(requests(target, payload, 20, path))
        for _ in range(rounds):
            for target, process in running.items():
                before = cpu_s(process.pid)
                asyncio.run(requests(target, payload, count, path))
                spent[target].append((cpu_s(process.pid) - before) / count * 1000)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait(timeout=40)
    return statistics.median(spent[ours]), statistics.median(spent[empty])


def rows(rig: Rig, path: str, payload: bytes, seconds: float) -> Mapping[str, float]:
    """CPU milliseconds of each stage, and of a whole pass without gRPC."""
    sent = messages(payload, path)
    found = {name: ms_each(stage, seconds) for name, stage in rig.stages(path, payload, sent)}
    with asyncio.Runner() as runner:
        whole = ms_each(lambda: runner.run(rig.exchange(sent)), seconds)
        idle = ms_each(lambda: runner.run(asyncio.sleep(0)), seconds / 4)  # what this way of running costs
    return found | {"bookkeeping": whole - idle - sum(found.values())}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=32, help="default %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="of the servers, default %(default)s")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each stage, default %(default)s")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        yaml = configuration(Path(directory), arguments.instances)
        rig = Rig(yaml)
        chat = body(400_000, 190)
        rendered = rig.pool.renderer.render(apis.parse("/v1/chat/completions", chat)).data.decode()
        cases = {"1 KB": ("/v1/chat/completions", body(1_000, 3))}
        cases |= {f"400 KB {name}": case for name, case in by_api(chat, rendered).items()}
        print("CPU milliseconds of one request, and times of the least server")
        for name, (path, payload) in cases.items():
            stages = dict(rows(rig, path, payload, arguments.seconds))
            count = 400 if len(payload) < 10_000 else 60
            ours, least = served(payload, path, yaml, count, arguments.rounds)
            stages["gRPC, asyncio"] = ours - sum(stages.values())
            print(f"\n{name}")
            for stage, cost in stages.items():
                print(f"  {stage:<22}{cost:>8.3f}{cost / least:>8.2f}x")
            print(f"  {'the server':<22}{ours:>8.3f}{ours / least:>8.2f}x")
            print(f"  {'the least server':<22}{least:>8.3f}{1:>8.2f}x")


if __name__ == "__main__":
    main()
