"""What is measured of a chaos run: memory, Envoy's access log and counters, the router's own metrics."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.chaos.load import TAG
from bench.chaos.world import World, command, descendants
from loadgen.stack.parts import get

SAMPLE_S = 1.0
# Envoy's counters of what went on without a decision.
ENVOY = {
    "http.agents.ext_proc.failure_mode_allowed": "went on",
    "http.agents.ext_proc.message_timeouts": "timed out",
}
MB = 1024.0  # of the kilobytes in /proc


@dataclass(slots=True)
class Seen:
    """The load's requests in a part of the access log."""

    requests: int = 0
    undecided: int = 0  # went on without a word of ours
    reasons: Counter[str] = field(default_factory=Counter)
    waited_ms: list[float] = field(default_factory=list)  # what ext_proc added, as Envoy measured it


class AccessLog:
    """Reads what is new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def new(self) -> Seen:
        """What ended since the last call."""
        seen = Seen()
        if not self._path.exists():
            return seen
        with self._path.open("rb") as log:
            log.seek(self._read)
            text = log.read()
        text = text[: text.rfind(b"\n") + 1]
        self._read += len(text)
        for line in text.splitlines():
            if b"request=" + TAG.encode() in line:
                _add(seen, json.loads(line))
        return seen


def _add(seen: Seen, entry: Mapping[str, Any]) -> None:
    seen.requests += 1
    if entry["smetric"]:
        seen.reasons[entry["smetric"]["reason"]] += 1
    else:
        seen.undecided += 1
    waited = [float(part) for part in entry["waited_us"].values() if part not in (None, "-", "")]
    if waited:
        seen.waited_ms.append(sum(waited) / 1000)


class Memory:
    """Resident memory of every process, sampled by the second."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.samples: list[tuple[float, dict[str, float]]] = []  # when, MB by name

    async def sample(self) -> None:
        """Until cancelled."""
        while True:
            self.samples.append((time.monotonic(), await asyncio.to_thread(lambda: dict(_memory(self._world)))))
            await asyncio.sleep(SAMPLE_S)

    def most(self, since: float, until: float) -> dict[str, float]:
        """The highest of each process in a time."""
        return {name: max(found) for name, found in self._between(since, until).items()}

    def mean(self, since: float, until: float) -> dict[str, float]:
        """The mean of each process in a time."""
        return {name: sum(found) / len(found) for name, found in self._between(since, until).items()}

    def _between(self, since: float, until: float) -> Mapping[str, list[float]]:
        found: dict[str, list[float]] = defaultdict(list)
        for at, sample in self.samples:
            if since <= at < until:
                for name, size in sample.items():
                    found[name].append(size)
        return found


def _memory(world: World) -> Iterator[tuple[str, float]]:
    stack = world.stack
    for child in (stack.envoy, stack.redis):
        if child is not None and child.pid is not None:
            yield child.name, resident_mb(child.pid)
    yield "engine", max(resident_mb(engine.pid) for engine in world.engines if engine.pid) if world.engines else 0.0
    if stack.extproc is None or stack.extproc.pid is None:
        return
    yield "serve", resident_mb(stack.extproc.pid)
    others: Counter[str] = Counter()
    for pid in descendants(stack.extproc.pid):
        others[f"router: {_role(command(pid))}"] += round(resident_mb(pid) * 10)
    for name, tenths in others.items():
        yield name, tenths / 10


def _role(words: str) -> str:
    """Of a child of the router: its module, or what it does where the module is the same for all."""
    _, found, rest = words.partition(" -m extproc.app.")
    return rest.removeprefix("child ").partition(" --")[0] if found else "starting"


def resident_mb(pid: int) -> float:
    """Resident memory; 0 when the process is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")), 0) / MB


class Counters:
    """Counters that only rise, of which the rise is wanted. A router that restarts begins at 0 again."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last = self._read()

    def risen(self) -> dict[str, float]:
        """Since the last call."""
        now = self._read()
        risen = {name: value - self._last.get(name, 0.0) for name, value in now.items()}
        self._last = now
        return {name: rise if rise >= 0 else now[name] for name, rise in risen.items()}

    def _read(self) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        stats = json.loads(get(f"{self._world.stack.admin_url}/stats?format=json&filter=ext_proc") or b'{"stats": []}')
        for stat in stats["stats"]:
            if (name := ENVOY.get(stat.get("name", ""))) is not None:
                found[name] = float(stat["value"])
        for page in self._world.pages("/metrics"):
            for line in (page or b"").decode().splitlines():
                # Messages out of order are a stranger's doing (`grpc-confused`), and no bug of ours.
                if line.startswith("smetric_exceptions_total{") and 'where="exchange"' not in line:
                    found[f"bug: {line.partition('{')[2].partition('}')[0]}"] += float(line.rpartition(" ")[2])
                elif line.startswith("smetric_loop_stall_seconds_bucket{") and 'cause="work"' in line:
                    bound = line.partition('le="')[2].partition('"')[0]
                    found[f"stall {bound}"] += float(line.rpartition(" ")[2])
        return found


def longest_stall_s(risen: Mapping[str, float]) -> float:
    """The bucket of the longest time that a worker's loop was held up by its own work, in seconds."""
    bounds = sorted((float(name.split()[1]), rise) for name, rise in risen.items() if name.startswith("stall "))
    total = bounds[-1][1] if bounds else 0.0
    return next((bound for bound, rise in bounds if rise >= total), 0.0) if total else 0.0
