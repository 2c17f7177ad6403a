"""The scheduler of the live engine over caches of the simulation: an instance's own, and a global tier beneath it.

What an instance computes is written through to the tier; what its own cache lacks and the tier has is fetched. One
link an instance, first come first served: a fetch takes FETCH_S and its bytes at the link's rate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from loadgen.engine.scheduler import Limits, Scheduler, Step, Task
from loadgen.engine.timing import GB, Accelerator
from loadgen.results.records import Row
from loadgen.simulation.caches import GlobalTier, LocalCache
from loadgen.simulation.keys import KeyArray
from loadgen.simulation.scenario import Fetch
from loadgen.workloads.trace import TraceRequest

FETCH_S = 5e-3  # before the first byte of a fetch


@dataclass(frozen=True, slots=True)
class Stored:
    """These keys can be found from here on."""

    keys: list[int]


@dataclass(frozen=True, slots=True)
class Removed:
    """These keys were evicted."""

    keys: list[int]


Event = Stored | Removed


@dataclass(eq=False, slots=True, kw_only=True)
class SimulatedTask(Task):
    """A request at an instance. `keys` is as in `loadgen.instance.Request`."""

    keys: KeyArray
    traced: TraceRequest
    row: Row
    blocks: int = 0  # held
    nameless: int = 0  # of these, what others compute too
    fetched: int = 0  # tokens of the prompt that came from the global tier


class SimulatedInstance(Scheduler[SimulatedTask, Event]):
    """One instance of a cluster that shares `tier`; without one it has its own cache alone."""

    def __init__(
        self,
        name: str,
        profile: Accelerator,
        cache: LocalCache,
        block_size: int,
        tier: GlobalTier | None,
        fetch: Fetch,
        gbps: float,
        limits: Limits | None = None,
    ) -> None:
        super().__init__(profile, limits)
        self.name = name
        self._cache = cache
        self._block_size = block_size
        self._tier = tier
        self._fetch = fetch
        self._rate = gbps * GB / profile.kv_per_token  # tokens a second
        self._promised = 0  # blocks that running tasks still have to allocate
        self._stall = 0.0  # of the step that is being scheduled
        self._link_free = 0.0  # when the last fetch ends

    def begin(self, now: float, *, leap: bool = True) -> Step[SimulatedTask, Event] | None:
        """See `Scheduler`; a blocking fetch makes the step longer."""
        self._stall = 0.0
        step = super().begin(now, leap=leap)
        return replace(step, ends=step.ends + self._stall) if step and self._stall else step

    def next_arrival(self, now: float) -> float | None:
        """When the next of the fetches that are under way ends."""
        return min((task.ready for task in self.running if task.ready > now), default=None)

    def finish(self, step: Step[SimulatedTask, Event]) -> list[SimulatedTask]:
        """See `Scheduler`; a prompt is in the tier as soon as it is computed."""
        sampled = super().finish(step)
        for task in sampled:
            if task.sampled == 1 and task.active:
                self._write_through(task)
        return sampled

    def _admit(self, task: SimulatedTask, now: float) -> bool:
        usable = task.keys[: (task.prompt - 1) // self._block_size]
        found, unused = self._cache.prefix(usable)
        size = self._size(task)
        if size - found + unused + self._promised > self._cache.free:
            return False
        self._cache.use(usable[:found])
        task.blocks = task.stored = found
        task.computed = task.hit = found * self._block_size
        self._promised += size - found
        task.ready = self._arrival(usable[:found], now)
        if self._tier is not None and (fetched := self._tier.prefix(usable[found:])):
            task.fetched = fetched * self._block_size
            self._compute(task, task.fetched)
            self._wait(task, now)
        return True

    def _arrival(self, found: KeyArray, now: float) -> float:
        """When the last of these keys is there: some may be on their way for another task."""
        arrival = 0.0
        for task in self.running:
            first = task.hit // self._block_size
            if task.ready > now and task.fetched and first < len(found) and found[first] == task.keys[first]:
                arrival = max(arrival, task.ready)
        return arrival

    def _wait(self, task: SimulatedTask, now: float) -> None:
        seconds = FETCH_S + task.fetched / self._rate
        if self._fetch is Fetch.BLOCKING:
            self._stall += seconds
        else:
            self._link_free = task.ready = max(self._link_free, now) + seconds

    def _compute(self, task: SimulatedTask, new: int) -> None:
        task.computed += new
        missing = -(-task.computed // self._block_size) - task.blocks
        if missing > 0:
            task.blocks += missing
            self._promised -= missing
            if evicted := self._cache.allocate(missing):
                self._pending.append(Removed(evicted))
        full = task.computed // self._block_size
        if full > task.stored:
            stored, nameless = self._cache.store(task.keys[task.stored : full])
            task.nameless += nameless
            task.stored = full
            if stored:
                self._pending.append(Stored(stored))

    def _retire(self, task: SimulatedTask) -> None:
        self._write_through(task)
        self._promised -= self._size(task) - task.blocks
        self._cache.release(task.keys[: task.stored], task.blocks - task.stored + task.nameless)

    def _write_through(self, task: SimulatedTask) -> None:
        if self._tier is not None:
            self._tier.use(task.keys[: task.stored])

    def _size(self, task: SimulatedTask) -> int:
        """Blocks that a task needs over its life."""
        return -(-(task.prompt + task.reply - 1) // self._block_size)
