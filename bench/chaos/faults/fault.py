"""What a fault is, and the table that each file of faults fills."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from bench.chaos.world import World

Inflict = Callable[[World], AsyncIterator[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """`lasts_s`: how long it stays, unless the run has less time."""

    name: str
    about: str
    lasts_s: float
    inflict: Callable[[World], AbstractAsyncContextManager[None]]


@dataclass(slots=True)
class Table:
    """The faults of one file, in its order."""

    all: list[Fault] = field(default_factory=list)

    def __call__(self, name: str, lasts_s: float = 6.0) -> Callable[[Inflict], Inflict]:
        """Enter a fault; what it does is its docstring."""

        def entered(inflict: Inflict) -> Inflict:
            about = " ".join((inflict.__doc__ or "").split())
            self.all.append(Fault(name, about, lasts_s, asynccontextmanager(inflict)))
            return inflict

        return entered
