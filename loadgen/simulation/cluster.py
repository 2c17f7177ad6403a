"""The event loop: requests arrive, are routed, queued and computed; an end sets off the next turn.

Events are rows of a heap, (time, order, what to do). Only the loop knows the time; the parts get it as an argument.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count

from extproc.routing.pools.loads import PairTicket
from extproc.routing.router import Decision
from loadgen.engine.scheduler import Limits, Step
from loadgen.engine.timing import PROFILES
from loadgen.results.records import Row
from loadgen.simulation.caches import GlobalTier, LocalCache
from loadgen.simulation.instance import Event, SimulatedInstance, SimulatedTask
from loadgen.simulation.keys import Keys
from loadgen.simulation.product_router import ProductRouter
from loadgen.simulation.scenario import Layout, Scenario
from loadgen.workloads.trace import Dispatch, Trace, TraceRequest

# Simulated after the window, with load, so that what is due at its end can still finish: a reply of 8,192 tokens takes
# less at any load that meets the SLO.
DRAIN_S = 120.0
IDEAL_TPOT_S = 0.020  # of the decoder behind instances that only prefill

OnProgress = Callable[[float], None]  # is told the simulated time


class ImpossibleScenario(ValueError):
    """No simulation can be made of this; the message says why and what to change."""


def simulate(scenario: Scenario, trace: Trace, *, progress: OnProgress = lambda now: None) -> list[Row]:
    """Simulate until all that is due in the window has ended, or DRAIN_S after it; a row a request, as due.

    Rows of the warm-up are there too. What had not ended is marked "unfinished".

    Raises:
        ImpossibleScenario: a prompt is larger than an instance's cache, block sizes do not fit, ...
    """
    return _Cluster(scenario, trace).run(progress)


def names_of(scenario: Scenario) -> list[str]:
    """The instances' names."""
    return [f"i{number:02d}" for number in range(scenario.instances)]


class _Cluster:
    def __init__(self, scenario: Scenario, trace: Trace) -> None:
        profile = PROFILES[scenario.model]
        block_size = scenario.block_size or trace.block_size
        local = scenario.local_tokens or profile.capacity
        blocks = local // block_size
        _check(scenario, trace, blocks * block_size)
        self._scenario = scenario
        self._colocated = scenario.layout is Layout.COLOCATED
        self._block_size = block_size
        self._overhead = profile.overhead
        self._window_ends = scenario.warmup_s + scenario.measure_s
        self._open = 0  # requests due before that, which have not ended
        try:
            self._keys = Keys(trace, block_size)
        except ValueError as error:
            raise ImpossibleScenario(str(error)) from None
        names = names_of(scenario)
        tier_blocks = round(scenario.global_ratio * blocks) * scenario.instances
        tier = GlobalTier(tier_blocks, self._keys.count) if tier_blocks else None
        self._instances = {
            name: SimulatedInstance(
                name,
                profile,
                LocalCache(blocks, self._keys.count),
                block_size,
                tier,
                scenario.fetch,
                scenario.fetch_gbps,
                Limits(scenario.batch_tokens, long_prefill=scenario.long_prefill_threshold),
            )
            for name in names
        }
        self._gateway = ProductRouter(scenario, names, block_size, blocks)
        self._steps: dict[str, tuple[int, Step[SimulatedTask, Event]]] = {}  # under way, by instance, with its number
        self._tickets: dict[str, Decision] = {}  # of requests under way, by id
        self._rows: list[Row] = []
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._children: Mapping[str, list[TraceRequest]] = defaultdict(list)
        known = {request.id for request in trace.requests}
        for request in trace.requests:
            if request.parent in known:
                self._children[request.parent].append(request)
            else:
                self._at(request.arrival_s, partial(self._arrive, request, request.arrival_s))

    def run(self, progress: OnProgress) -> list[Row]:
        """Process events in the order of their times."""
        heap = self._heap
        told = 0.0
        ends = self._window_ends + DRAIN_S
        while heap and heap[0][0] <= ends and (self._open or heap[0][0] < self._window_ends):
            now, _, act = heapq.heappop(heap)
            self._now = now
            act()
            if now - told >= 10.0:
                progress(told := now)
        for row in self._rows:
            if row.end_s is None:
                row.error, row.status = "unfinished", None
        return self._rows

    def _at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (when, next(self._order), act))

    def _arrive(self, traced: TraceRequest, due: float) -> None:
        """The gateway has a request: route it, and pass it on."""
        keys = self._keys.of(traced)
        chain: list[int] = keys[: traced.input // self._block_size].tolist()
        routed = self._gateway.route(traced.turn, traced.history, traced.input, chain, self._now)
        choice = routed.choice
        row = Row(
            request=traced.id,
            session=traced.session,
            turn=traced.turn,
            trigger=traced.trigger,
            due_s=due,
            sent_s=self._now,
            input=traced.input,
            output=traced.output,
            instance=choice.computes.name,
            decoder=choice.instance.name if choice.prefill else None,
            reason=choice.reason,
            predicted=choice.hit * traced.input // (choice.prompt or 1),
            load=choice.load,
            mean_load=choice.mean_load,
            status=200,
        )
        self._rows.append(row)
        self._open += due < self._window_ends
        self._tickets[traced.id] = routed
        reply = traced.output if self._colocated else 1
        task = SimulatedTask(prompt=traced.input, reply=reply, keys=keys, traced=traced, row=row)
        self._at(self._now + self._overhead, partial(self._submit, self._instances[choice.computes.name], task))

    def _submit(self, instance: SimulatedInstance, task: SimulatedTask) -> None:
        instance.waiting.append(task)
        self._disturb(instance)

    def _disturb(self, instance: SimulatedInstance) -> None:
        """There is something new to schedule: begin a step, or end the current leap at its next token."""
        under_way = self._steps.get(instance.name)
        if under_way is None:
            self._begin(instance)
            return
        shorter = instance.interrupt(under_way[1], self._now)
        if shorter is not under_way[1]:
            self._schedule(instance, shorter)

    def _begin(self, instance: SimulatedInstance) -> None:
        step = instance.begin(self._now)
        arrival = instance.next_arrival(self._now)
        if arrival is not None:
            self._at(arrival, partial(self._disturb, instance))
        if step is None:
            self._steps.pop(instance.name, None)
        else:
            self._schedule(instance, step)

    def _schedule(self, instance: SimulatedInstance, step: Step[SimulatedTask, Event]) -> None:
        number = next(self._order)
        self._steps[instance.name] = number, step
        self._at(step.ends, partial(self._end_step, instance, number))

    def _end_step(self, instance: SimulatedInstance, number: int) -> None:
        under_way = self._steps.get(instance.name)
        if under_way is None or number != under_way[0]:
            return  # it was interrupted, and has ended sooner
        step = under_way[1]
        sampled = instance.finish(step)
        self._gateway.learn(instance.name, step.events, self._now)
        self._gateway.learn(instance.name, instance.take_events(), self._now)
        for task in sampled:
            if task.row.first_s is None:
                self._first_token(task)
            if task.sampled == task.reply:
                self._finished(task)
        self._begin(instance)

    def _first_token(self, task: SimulatedTask) -> None:
        row = task.row
        row.first_s, row.local, row.fetched = self._now, task.hit, task.fetched
        if isinstance(ticket := self._tickets[row.request].ticket, PairTicket):
            ticket.prefilled()  # as the product: the answer of an instance that prefills alone

    def _finished(self, task: SimulatedTask) -> None:
        if self._colocated:
            self._end(task)
        else:
            self._at(self._now + (task.row.output - 1) * IDEAL_TPOT_S, partial(self._end, task))

    def _end(self, task: SimulatedTask) -> None:
        """The client has the whole reply."""
        row, traced = task.row, task.traced
        row.end_s, row.produced = self._now, row.output
        self._open -= row.due_s < self._window_ends
        self._tickets.pop(row.request).ticket.release()
        for child in self._children.get(row.request, ()):
            due = self._due(child, traced)
            self._at(max(self._now, due), partial(self._arrive, child, max(self._now, due)))

    def _due(self, child: TraceRequest, parent: TraceRequest) -> float:
        """When a follow-up is sent, whose parent has just ended."""
        if self._scenario.dispatch is Dispatch.TRACE:
            return child.arrival_s
        # A fork may begin before its parent's end in the trace; it begins at that end here.
        return self._now + (child.gap_s if child.gap_s is not None else max(0.0, child.arrival_s - parent.arrival_s))


def _check(scenario: Scenario, trace: Trace, capacity: int) -> None:
    if scenario.instances < 1:
        raise ImpossibleScenario(f"{scenario.instances} instances: at least one is needed")
    largest: TraceRequest | None = max(trace.requests, key=lambda request: request.input + request.output, default=None)
    if largest is None:
        raise ImpossibleScenario(f"workload {trace.name!r} has no requests: a higher rate or a longer time makes some")
    if largest.input + largest.output > capacity:
        raise ImpossibleScenario(
            f"request {largest.id} has {largest.input} + {largest.output} tokens, and an instance's cache {capacity}: "
            "raise --local-tokens, or choose another --model"
        )
    if (
        scenario.dispatch is Dispatch.THINK
        and not any(request.gap_s is not None for request in trace.requests if request.parent)
        and any(request.parent for request in trace.requests)
    ):
        raise ImpossibleScenario(
            f"workload {trace.name!r} does not say how long its clients think: use --dispatch trace"
        )
