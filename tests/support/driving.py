"""Runs one scheduler on a virtual clock, by single steps or by leaps: what the simulation's loop does with many."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadgen.engine.scheduler import Scheduler, Step, Task


@dataclass
class Course:
    """What happened: times in seconds by the task's place among the arrivals, and every event in order."""

    first: dict[int, float] = field(default_factory=dict)
    end: dict[int, float] = field(default_factory=dict)
    events: list[Any] = field(default_factory=list)
    steps: int = 0


def drive(
    subject: Scheduler[Any, Any],
    arrivals: Sequence[tuple[float, Task]],
    *,
    leap: bool,
    wake: Callable[[float], float | None] = lambda now: None,
    check: Callable[[], None] = lambda: None,
) -> Course:
    """Submit each task at its time (ascending) and run until idle.

    `wake` says when there may be something new to schedule without an arrival; `check` is called after each step.
    """
    course = Course()
    place = {id(task): number for number, (_, task) in enumerate(arrivals)}
    queue = deque(arrivals)
    step: Step[Any, Any] | None = None
    waking: float | None = None
    while queue or step or waking is not None:
        ends = step.ends if step else math.inf
        due = min(queue[0][0] if queue else math.inf, math.inf if waking is None else waking)
        if due <= ends:
            now = due
            while queue and queue[0][0] <= now:
                subject.waiting.append(queue.popleft()[1])
            if step:
                step = subject.interrupt(step, now)
                waking = None if waking == now else waking
                continue
        else:
            assert step
            now = ends
            course.steps += 1
            for task in subject.finish(step):
                course.first.setdefault(place[id(task)], now)
                if task.sampled == task.reply:
                    course.end[place[id(task)]] = now
            course.events += [*step.events, *subject.take_events()]
            check()
        step = subject.begin(now, leap=leap)
        waking = wake(now)
    return course
