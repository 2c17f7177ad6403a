"""One chaos run: the load, and one fault after the other, each until all is well again.

Owns the order and the clock. What a fault does, what is measured and what is lost, others know.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field

import aiohttp

from bench.chaos.faults import Fault
from bench.chaos.load import Tally, agents, workload
from bench.chaos.watch import AccessLog, Counters, Memory, Seen, longest_stall_s
from bench.chaos.world import World
from loadgen.replay.chat_request import CHAT

WARM_UP_S = 15.0  # of load before the first fault, and after the last one
RECOVERY_S = 120.0  # what is not well again by then counts as never
QUIET_S = 1.0  # between a recovery and the next fault
LOOK_S = 0.1
PROBE_S = 5.0  # until a new prompt is tried: the first one may have been stored unheard
SETTLE_S = 90.0  # for what is under way at the end: longer than any client waits
MINUTE_S = 60.0
JUDGED_S = 3 * MINUTE_S  # in a shorter run memory still grows into its size


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. `lasts` multiplies the time that faults stay."""

    seconds: float
    rate: float
    seed: int
    faults: Sequence[Fault]
    lasts: float = 1.0


@dataclass(slots=True, kw_only=True)
class Record:
    """One fault: a line of the output. Times in seconds; a recovery that is None never came."""

    fault: str
    start_s: float  # since the run began
    lasted_s: float
    requests: int
    lost: int
    excused: int
    errors: dict[str, int]
    undecided: int  # of the load's requests, by the access log
    envoy: dict[str, float]  # of all requests, hostile ones too
    reasons: dict[str, int]
    waited_p50_ms: float | None  # for ext_proc, as Envoy measured it
    waited_p99_ms: float | None
    stall_s: float  # the longest that a worker's loop was held by its own work: a bucket's bound
    memory_mb: dict[str, float]  # the most of each process
    clean_s: float | None  # from the end of the fault until every part says that it is well
    exact_s: float | None  # and until every worker knows what each engine has just cached
    unclean: str  # what was not well, where it never came
    bugs: dict[str, float]


@dataclass(slots=True)
class Outcome:
    """A whole run."""

    records: list[Record] = field(default_factory=list)
    seen: Seen = field(default_factory=Seen)
    untried: list[str] = field(default_factory=list)
    loads: float = math.nan  # at the end
    memory: dict[str, tuple[float, float]] = field(default_factory=dict)  # second minute, after the last one: MB
    bugs: dict[str, float] = field(default_factory=dict)


class Run:
    """See the module."""

    def __init__(self, world: World, plan: Plan, tally: Tally, done: Callable[[Record], None]) -> None:
        """`done` hears of each fault."""
        self._world, self._plan, self._tally, self._done = world, plan, tally, done
        self._memory, self._log = Memory(world), AccessLog(world.stack.access_log_path)
        self._counters = Counters(world)
        self._began = 0.0
        self._outcome = Outcome()

    async def run(self) -> Outcome:
        """All of it, to the end of the load and the quiet after it."""
        trace = await asyncio.to_thread(workload, self._plan.seconds, self._plan.rate, self._plan.seed)
        self._began = time.monotonic()
        async with _background(self._memory.sample()):
            load = asyncio.create_task(agents(self._world.stack.url, trace, self._plan.seconds, self._tally))
            try:
                await asyncio.sleep(min(WARM_UP_S, self._plan.seconds / 6))
                await self._faults()
                await load
            finally:
                load.cancel()
                await asyncio.gather(load, return_exceptions=True)
            await self._settled()
        return self._outcome

    async def _faults(self) -> None:
        end = self._began + self._plan.seconds - min(WARM_UP_S, self._plan.seconds / 6)
        left = list(self._schedule())
        while time.monotonic() < end:
            if not left:
                left = list(self._schedule())
            fault = left.pop()
            record = await self._one(fault)
            self._outcome.records.append(record)
            self._done(record)
            await asyncio.sleep(QUIET_S)
        tried = {record.fault for record in self._outcome.records}
        self._outcome.untried = [fault.name for fault in self._plan.faults if fault.name not in tried]

    def _schedule(self) -> Iterator[Fault]:
        """Every fault once, in an order of the seed's."""
        order = list(self._plan.faults)
        self._world.rng.shuffle(order)
        yield from order

    async def _one(self, fault: Fault) -> Record:
        world, tally = self._world, self._tally
        self._take()
        begun, before = time.monotonic(), (tally.lost, tally.excused, Counter(tally.errors))
        async with fault.inflict(world):
            await asyncio.sleep(fault.lasts_s * self._plan.lasts)
        undone = time.monotonic()
        (clean_s, unclean), exact_s = await asyncio.gather(self._clean(undone), self._exact(undone))
        seen, risen = self._take()
        bugs = {name: rise for name, rise in risen.items() if name.startswith("bug") and rise}
        waited = sorted(seen.waited_ms)
        return Record(
            fault=fault.name,
            start_s=round(begun - self._began, 1),
            lasted_s=round(undone - begun, 1),
            requests=seen.requests,
            lost=tally.lost - before[0],
            excused=tally.excused - before[1],
            errors=dict(tally.errors - before[2]),
            undecided=seen.undecided,
            envoy={name: risen[name] for name in ("went on", "timed out") if risen.get(name)},
            reasons=dict(seen.reasons.most_common()),
            waited_p50_ms=_quantile(waited, 0.5),
            waited_p99_ms=_quantile(waited, 0.99),
            stall_s=longest_stall_s(risen),
            memory_mb={name: round(size) for name, size in self._memory.most(begun, time.monotonic()).items()},
            clean_s=clean_s,
            exact_s=exact_s,
            unclean=unclean,
            bugs=bugs,
        )

    def _take(self) -> tuple[Seen, dict[str, float]]:
        """What happened since the last call; it also goes to the whole run's account."""
        seen, risen, whole = self._log.new(), self._counters.risen(), self._outcome.seen
        whole.requests += seen.requests
        whole.undecided += seen.undecided
        whole.reasons += seen.reasons
        whole.waited_ms += seen.waited_ms
        for name, rise in risen.items():
            if name.startswith("bug") and rise:
                self._outcome.bugs[name] = self._outcome.bugs.get(name, 0.0) + rise
        return seen, risen

    async def _clean(self, since: float) -> tuple[float | None, str]:
        """How long until every part says that it is well; None and what is not, where it never does."""
        unclean = "?"
        while time.monotonic() - since < RECOVERY_S:
            unclean = await asyncio.to_thread(self._world.unclean)
            if not unclean:
                return round(time.monotonic() - since, 1), ""
            await asyncio.sleep(LOOK_S)
        return None, unclean

    async def _exact(self, since: float) -> float | None:
        """How long until every worker knows a prompt that each engine has cached past all routers."""
        while time.monotonic() - since < RECOVERY_S:
            body = b'{"messages":[{"role":"user","content":"%s %s"}],"max_tokens":1}' % (
                os.urandom(8).hex().encode(),
                b"a prompt that nobody else has " * 20,
            )
            asked = time.monotonic()
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                await asyncio.gather(*(_directly(engine.url, body) for engine in self._world.engines))
                while time.monotonic() - asked < PROBE_S:
                    if all(await asyncio.to_thread(list, self._world.hits(body))):
                        return round(time.monotonic() - since, 1)
                    await asyncio.sleep(LOOK_S)
            await asyncio.sleep(LOOK_S)
        return None

    async def _settled(self) -> None:
        """Wait for what is still counted, and take the last figures."""
        deadline, outcome = time.monotonic() + SETTLE_S, self._outcome
        while True:
            outcome.loads = await asyncio.to_thread(self._world.loads)
            if not outcome.loads or time.monotonic() > deadline:
                break
            await asyncio.sleep(LOOK_S)
        await asyncio.sleep(min(10.0, self._plan.seconds / 10))
        self._take()
        early = self._memory.mean(self._began + MINUTE_S, self._began + 2 * MINUTE_S)
        late = self._memory.mean(time.monotonic() - 5, math.inf)
        if self._plan.seconds < JUDGED_S:
            return
        outcome.memory = {name: (early[name], late[name]) for name in early if name in late}


async def _directly(url: str, body: bytes) -> None:
    """Ask an engine past Envoy and the router."""
    timeout = aiohttp.ClientTimeout(total=PROBE_S)
    headers = {"content-type": "application/json"}
    async with (
        aiohttp.ClientSession(timeout=timeout) as http,
        http.post(url + CHAT, data=body, headers=headers) as said,
    ):
        await said.read()


@contextlib.asynccontextmanager
async def _background(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _quantile(values: Sequence[float], share: float) -> float | None:
    """Of sorted values; None without any."""
    return round(values[min(len(values) - 1, int(share * len(values)))], 1) if values else None
