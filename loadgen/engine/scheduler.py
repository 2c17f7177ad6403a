"""vLLM's scheduler: continuous batching with chunked prefill, first come first served. No I/O, no clock, no memory.

A caller submits tasks, begins a step, waits until it `ends` (really, or on a virtual clock), finishes it, and begins
the next. The live engine (`engine.py`) and the simulation (`simulation/`) drive the same code; the simulation lets it
leap over steps that only decode, whose times are a sum in closed form.

Owns the queues and the token budget. Where the KV is kept is its subclasses' business: they admit a task when there is
room, make room for what is computed, and take it back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from loadgen.engine.timing import Accelerator


@dataclass(eq=False, slots=True, kw_only=True)
class Task:
    """One generation. Lengths in tokens; prompt and reply are at least 1."""

    prompt: int
    reply: int
    computed: int = 0  # tokens whose KV is there
    sampled: int = 0  # tokens of the reply so far
    hit: int = 0  # tokens of the prompt found in the cache
    stored: int = 0  # leading blocks that hold a key
    ready: float = 0.0  # not before this time is it computed: its KV is on its way
    active: bool = False  # admitted, neither finished nor aborted


T = TypeVar("T", bound=Task)
T_co = TypeVar("T_co", bound=Task, covariant=True)
E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Step(Generic[T_co, E_co]):
    """What is computed next, and until when. `events` are published when the step has ended.

    With a `count` above 1 it stands for so many consecutive steps, each a token for each task.
    """

    ends: float
    scheduled: Sequence[T_co]
    events: Sequence[E_co]
    began: float = 0.0
    count: int = 1


@dataclass(frozen=True, slots=True)
class Limits:
    """vLLM's scheduler settings, with its defaults for a GPU."""

    batch_tokens: int = 8192  # --max-num-batched-tokens
    sequences: int = 1024  # --max-num-seqs
    long_prefill: int = 0  # --long-prefill-token-threshold: tokens of one prompt in a step at most; 0: the whole budget


class Scheduler(ABC, Generic[T, E]):
    """One step at a time: `begin`, then `finish` of that step, then `begin` again.

    Events (E) are what the memory tells of itself while a step is scheduled.
    """

    def __init__(self, profile: Accelerator, limits: Limits | None = None) -> None:
        self.profile = profile
        self.limits = limits or Limits()
        self.waiting: deque[T] = deque()
        self.running: list[T] = []
        self._pending: list[E] = []  # events that no step has published yet

    def abort(self, task: T) -> None:
        """Forget a task wherever it is; its memory is free at once. Idempotent."""
        if task.active:
            self._leave(task)
        elif task in self.waiting:
            self.waiting.remove(task)

    def begin(self, now: float, *, leap: bool = False) -> Step[T, E] | None:
        """Schedule one step that starts at `now` (seconds on the caller's clock); None when there is nothing to do.

        With `leap`, steps that only decode become one, until the first task finishes; `interrupt` ends it sooner.
        """
        budget = self.limits.batch_tokens
        scheduled: list[T] = []
        chunks: list[tuple[int, int]] = []
        contexts: list[int] = []

        for task in self.running:  # decodes first, so that no prefill holds them up
            if task.sampled:
                contexts.append(task.computed + 1)
                budget -= 1
                self._compute(task, 1)
                scheduled.append(task)
        if len(scheduled) < len(self.running):
            for task in self.running:
                if not task.sampled and task.ready <= now and budget:
                    budget -= self._prefill(task, budget, scheduled, chunks)
        while (
            self.waiting and budget and len(self.running) < self.limits.sequences and self._start(self.waiting[0], now)
        ):
            task = self.waiting.popleft()
            if task.ready <= now:
                budget -= self._prefill(task, budget, scheduled, chunks)

        if not scheduled:
            return None
        events, self._pending = self._pending, []
        count = min(task.reply - task.sampled for task in scheduled) if leap and not chunks else 1
        if count == 1:
            return Step(now + self.profile.seconds(chunks, contexts), scheduled, events, now)
        ends = now + self.profile.decodes(len(contexts), sum(contexts), count)
        return Step(ends, scheduled, events, now, count)

    def interrupt(self, step: Step[T, E], at: float) -> Step[T, E]:
        """The same step, ending with the first of its steps that is not over before `at`."""
        if step.count == 1:
            return step
        sequences, context = len(step.scheduled), sum(task.computed for task in step.scheduled)
        count = min(step.count, self.profile.decode_steps(sequences, context, at - step.began))
        return replace(step, ends=step.began + self.profile.decodes(sequences, context, count), count=count)

    def finish(self, step: Step[T, E]) -> list[T]:
        """Account for a step that has ended: the tasks that sampled one more token, or `step.count` more.

        A task is finished, and its blocks are free, when `sampled` has reached `reply`.
        """
        # Neither those whose prefill goes on nor who was aborted since.
        sampled = [task for task in step.scheduled if task.computed >= task.prompt and task.active]
        if step.count > 1:
            for task in sampled:  # all of them before one leaves; the first step was computed when it began
                self._compute(task, step.count - 1)
        for task in sampled:
            task.sampled += step.count
            if task.sampled == task.reply:
                self._leave(task)
        return sampled

    def take_events(self) -> Sequence[E]:
        """Events that the next step would publish; for a caller who need not wait for it."""
        events, self._pending = self._pending, []
        return events

    def _prefill(self, task: T, budget: int, scheduled: list[T], chunks: list[tuple[int, int]]) -> int:
        """Schedule a chunk of a prompt; its tokens."""
        new = min(task.prompt - task.computed, budget, self.limits.long_prefill or budget)
        chunks.append((new, task.computed))
        self._compute(task, new)
        scheduled.append(task)
        return new

    def _leave(self, task: T) -> None:
        self.running.remove(task)
        task.active = False
        self._retire(task)

    def _start(self, task: T, now: float) -> bool:
        if not self._admit(task, now):
            return False
        task.active = True
        self.running.append(task)
        return True

    @abstractmethod
    def _admit(self, task: T, now: float) -> bool:
        """Take a task in, if all that it will ever need fits beside what is promised to the others.

        Sets `computed`, `hit` and `stored` by what is cached, and `ready` where its KV has to arrive first.
        """

    @abstractmethod
    def _compute(self, task: T, new: int) -> None:
        """Make room for `new` more tokens of a task, and let the blocks that they fill be found."""

    @abstractmethod
    def _retire(self, task: T) -> None:
        """Take back what an admitted task holds."""
