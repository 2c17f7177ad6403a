"""Whether anybody's body holds up another's decision: small requests through Envoy while one client sends the worst.

    python -m bench.hostile [--megabytes 29] [--bodies 5] [KIND ...]

Background: small chats at `--rate` a second. One attacker, in a process of its own, sends `--bodies` bodies of each
kind, one a second. The same against Envoy without ext_proc is the control. The engines answer at once.

One row a kind: milliseconds of the background without and with the router, its requests without a decision, the reasons
for the attacker's, the longest stall of the loop by its own work (upper bound of the bucket), the longest answer of
gRPC health, and the most memory of the router with what reads for it. Bodies beyond `x-smetric-max-body` are not read:
try `--megabytes 15` too. On a shared machine only ratios mean something, and a stall by the CPU's own clock.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import math
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import uvloop
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench.chaos.attacks.bodies import CHAT, KINDS
from bench.chat import body
from bench.gateways import ROOT, Backend
from loadgen.engine.options import MODEL_DIR
from loadgen.stack.envoy_config import EnvoySettings, render
from loadgen.stack.processes import free_port

SETTLE_S = 3.0  # Envoy's first health check of ext_proc
SMALL = body(2_000, 5)


@dataclass
class Seen:
    """What was measured of one kind on one side."""

    waited_s: list[float] = field(default_factory=list)
    undecided: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    stall_s: float = 0.0
    health_s: float = 0.0
    memory_mb: float = 0.0

    def quantile(self, share: float) -> float:
        """Milliseconds that so many of the background's requests took at most."""
        waited = sorted(self.waited_s)
        return waited[min(len(waited) - 1, math.ceil(share * len(waited)) - 1)] * 1000 if waited else math.nan


class Side:
    """One Envoy, with the router or without it."""

    def __init__(self, directory: Path, backends: Sequence[int], *, router: bool) -> None:
        self.router = router
        self.port, admin, self.grpc, self.health, self.metrics = (free_port() for _ in range(5))
        self._log = directory / f"access-{router}.log"
        settings = EnvoySettings(
            port=self.port,
            admin_port=admin,
            access_log=self._log,
            model_dir=MODEL_DIR,
            engines=[{"port": backend} for backend in backends],
            extproc_ports=(self.grpc,) if router else (),
            health_port=self.health,
            cluster={"source": "routed"},
        )
        self._yaml = directory / f"envoy-{router}.yaml"
        self._yaml.write_text(render(settings))
        self._read = 0

    def commands(self) -> Iterator[Sequence[str]]:
        """What to run."""
        envoy = str(Path(sys.executable).with_name("envoy"))
        yield [envoy, "-c", str(self._yaml), "--disable-hot-restart", "--concurrency", "2", "--log-level", "error"]
        if self.router:
            yield [
                *(sys.executable, "-m", "extproc", "serve", "--log-level", "warning", "--envoy-yaml", str(self._yaml)),
                *("--listen", f"127.0.0.1:{self.grpc}", "--health", f"127.0.0.1:{self.health}"),
                *("--metrics", f"127.0.0.1:{self.metrics}"),
            ]

    def entries(self) -> Iterator[Mapping[str, Any]]:
        """Of the access log, what is new."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        for line in lines[self._read :]:
            yield json.loads(line)
        self._read = len(lines)

    async def stalls(self, http: aiohttp.ClientSession) -> Mapping[float, float]:
        """How often the loop was held up by its own work for at most so many seconds, so far."""
        found: dict[float, float] = {}
        async with http.get(f"http://127.0.0.1:{self.metrics}/metrics") as answer:
            for line in (await answer.text()).splitlines():
                if line.startswith("smetric_loop_stall_seconds_bucket{") and 'cause="work"' in line:
                    bound = line.partition('le="')[2].partition('"')[0]
                    found[float(bound)] = float(line.rpartition(" ")[2])
        return found


async def ready(side: Side) -> None:
    """Wait until requests go through."""
    async with asyncio.timeout(60), aiohttp.ClientSession() as http:
        while True:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with http.post(f"http://127.0.0.1:{side.port}{CHAT}", data=SMALL) as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.1)


async def background(side: Side, rate: float, seen: Seen) -> None:
    """Small chats, until cancelled; then the rest is waited for."""
    tasks: set[asyncio.Task[None]] = set()
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:

        async def one() -> None:
            began = time.perf_counter()
            async with http.post(f"http://127.0.0.1:{side.port}{CHAT}?background", data=SMALL) as answer:
                await answer.read()
            seen.waited_s.append(time.perf_counter() - began)

        with contextlib.suppress(asyncio.CancelledError):
            while True:
                tasks.add(asyncio.create_task(one()))
                await asyncio.sleep(1 / rate)
        await asyncio.gather(*tasks, return_exceptions=True)


async def watched(side: Side, pid: int, seen: Seen) -> None:
    """Health and memory, until cancelled."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{side.grpc}") as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        while True:
            began = time.perf_counter()
            await check(health_pb2.HealthCheckRequest())
            seen.health_s = max(seen.health_s, time.perf_counter() - began)
            seen.memory_mb = max(seen.memory_mb, sum(map(resident_mb, (pid, *children(pid)))))
            await asyncio.sleep(0.05)


def children(pid: int) -> list[int]:
    """Processes that a process started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def resident_mb(pid: int) -> float:
    """Resident memory; 0 where the process is gone."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024
    return 0.0


async def attacked(side: Side, pid: int, kind: str, options: argparse.Namespace) -> Seen:
    """One kind of body against one side."""
    seen = Seen()
    list(side.entries())
    async with aiohttp.ClientSession() as http:
        before = await side.stalls(http) if side.router else {}
        tasks = [asyncio.create_task(background(side, options.rate, seen))]
        if side.router:
            tasks.append(asyncio.create_task(watched(side, pid, seen)))
        attack = [str(options.megabytes), str(options.bodies), f"http://127.0.0.1:{side.port}", kind]
        attacker = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.hostile", "--attack", *attack, cwd=ROOT
        )
        await attacker.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if side.router:
            now = await side.stalls(http)
            risen = {bound: now[bound] - before.get(bound, 0.0) for bound in sorted(now)}
            seen.stall_s = next(bound for bound in risen if risen[bound] >= max(risen.values()))
    await asyncio.sleep(0.5)  # Envoy writes its log now and then
    for entry in side.entries():
        decided = entry["smetric"] or {}
        if "?background" in entry["path"]:
            seen.undecided += not decided
        else:
            seen.reasons[decided.get("reason", "undecided")] += 1
    return seen


async def measure(options: argparse.Namespace, directory: Path) -> None:
    """All kinds, each on both sides in turn."""
    backends = [free_port() for _ in range(4)]
    sides = [Side(directory, backends, router=router) for router in (False, True)]
    engines = [sys.executable, "-m", "bench.hostile", "--engines", *map(str, backends)]
    commands = [engines, *(command for side in sides for command in side.commands())]
    running = [subprocess.Popen(command, cwd=ROOT, start_new_session=True) for command in commands]
    router = running[-1].pid
    try:
        await asyncio.gather(*(ready(side) for side in sides))
        await asyncio.sleep(SETTLE_S)
        print(f"{options.rate:g} small requests a second; {options.bodies} bodies of {options.megabytes:g} MB, 1/s")
        head = "control p50/p99  router p50/p99 ms  undecided  stall ms  health ms  memory MB"
        print(f"{'body':30} {head}  the attacker's reasons", flush=True)
        whole = [Seen(), Seen()]
        for kind in options.kinds or KINDS:
            control, ours = [await attacked(side, router, kind, options) for side in sides]
            for total, seen in zip(whole, (control, ours), strict=True):
                total.waited_s += seen.waited_s
                total.undecided += seen.undecided
                total.reasons += seen.reasons
                total.stall_s, total.health_s = max(total.stall_s, seen.stall_s), max(total.health_s, seen.health_s)
                total.memory_mb = max(total.memory_mb, seen.memory_mb)
            row(kind, control, ours)
        row("all", *whole)
        most = 2 * whole[0].quantile(0.99) + 20
        print(f"p99 is {whole[1].quantile(0.99):.0f} ms, where 2 * control + 20 ms is {most:.0f} ms")
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            process.wait(timeout=40)


def row(name: str, control: Seen, ours: Seen) -> None:
    """Print it."""
    reasons = ", ".join(f"{count} {reason}" for reason, count in ours.reasons.most_common())
    print(
        f"{name:30} {control.quantile(0.5):7.0f} {control.quantile(0.99):7.0f} {ours.quantile(0.5):9.0f}"
        f" {ours.quantile(0.99):8.0f} {ours.undecided:6} of {len(ours.waited_s):4} {ours.stall_s * 1000:8.0f}"
        f" {ours.health_s * 1000:10.0f} {ours.memory_mb:10.0f}  {reasons}",
        flush=True,
    )


async def attack(megabytes: float, count: int, url: str, kind: str) -> None:
    """The attacker: so many bodies, one a second."""
    path, make = KINDS[kind]
    data = make(int(megabytes * 2**20))
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:

        async def one() -> None:
            with contextlib.suppress(TimeoutError, aiohttp.ClientError):
                headers = {"content-type": "application/json"}
                async with http.post(url + path, data=io.BytesIO(data), headers=headers) as answer:
                    await answer.read()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(count):
                tasks.create_task(one())
                await asyncio.sleep(1)


async def engines(numbers: Sequence[int]) -> None:
    """Engines that answer at once, until they are stopped."""
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Backend, "127.0.0.1", port) for port in numbers]
    await asyncio.gather(*(server.serve_forever() for server in servers))


def main() -> None:
    """Measure, or be the attacker or the engines of a measurement."""
    parser = argparse.ArgumentParser(
        "python -m bench.hostile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="names of bodies; all by default")
    parser.add_argument("--megabytes", type=float, default=29.0, help="of a body (%(default)g)")
    parser.add_argument("--bodies", type=int, default=5, help="of each kind (%(default)s)")
    parser.add_argument("--rate", type=float, default=20.0, help="of the background, a second (%(default)g)")
    parser.add_argument("--attack", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--engines", nargs="+", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engines:
        uvloop.run(engines(options.engines))
    elif options.attack:
        megabytes, count, url = options.attack
        uvloop.run(attack(float(megabytes), int(count), url, options.kinds[0]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            uvloop.run(measure(options, Path(directory)))


if __name__ == "__main__":
    main()
