"""Jobs spread over processes, so that a process meets jobs of one group one after the other. Knows no job's content.

Jobs of a group have something in common that is dear to make, which a process can keep (a trace, say). A job that
raises, or that takes its process with it, is an outcome like any other and ends nothing.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Generic, TypeVar

J = TypeVar("J")
R = TypeVar("R")

# A fork would copy the threads' locks of whatever shows the progress; a fresh interpreter has none.
_CONTEXT = multiprocessing.get_context("spawn")
STOP_S = 2.0  # for a process to end by itself before it is killed


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a job has no result."""

    reason: str


def spread(
    jobs: Iterable[J], work: Callable[[J], R], *, group: Callable[[J], Hashable], processes: int
) -> Iterator[tuple[J, R | Failed]]:
    """Do every job, `processes` at a time, and give each with its result as soon as it is done.

    `work` and the jobs must be picklable. Leaving the iterator, by an exception too, ends the processes.
    """
    queue = Queue(jobs, group)
    workers = [_Worker(work) for _ in range(min(processes, len(queue)))]
    try:
        for worker in workers:
            worker.give(queue.take(None, [other.group for other in workers]))
        while busy := {worker.connection: worker for worker in workers if worker.job is not None}:
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]  # wait() gives back what it got
                job = worker.job
                assert job is not None
                outcome = worker.outcome()
                if worker.dead:
                    worker.end()
                    workers[workers.index(worker)] = worker = _Worker(work)
                else:
                    worker.job = None
                worker.give(queue.take(worker.group, [other.group for other in workers]))
                yield job.content, outcome
    finally:
        for worker in workers:
            worker.end()


@dataclass(frozen=True, slots=True)
class Job(Generic[J]):
    """What is to be done, and what it has in common with others."""

    content: J
    group: Hashable


class Queue(Generic[J]):
    """Jobs by group, in the order in which they came."""

    def __init__(self, jobs: Iterable[J], group: Callable[[J], Hashable]) -> None:
        """Take the jobs by the name of their group."""
        self._groups: dict[Hashable, deque[Job[J]]] = {}
        for content in jobs:
            name = group(content)
            self._groups.setdefault(name, deque()).append(Job(content, name))

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def take(self, kept: Hashable, taken: Collection[Hashable]) -> Job[J] | None:
        """The next job of the group that is kept, else of one that no worker has, else of the longest."""
        if not self._groups:
            return None
        if kept not in self._groups:
            free = [name for name in self._groups if name not in taken]
            kept = free[0] if free else max(self._groups, key=lambda name: len(self._groups[name]))
        jobs = self._groups[kept]
        job = jobs.popleft()
        if not jobs:
            del self._groups[kept]
        return job


class _Worker(Generic[J, R]):
    """A process and this end of its pipe."""

    def __init__(self, work: Callable[[J], R]) -> None:
        self.connection, theirs = _CONTEXT.Pipe()
        self.job: Job[J] | None = None
        self.group: Hashable = None  # of the last job: what the process still keeps
        self.dead = False
        self._process: SpawnProcess = _CONTEXT.Process(target=_serve, args=(theirs, work), daemon=True)
        self._process.start()
        theirs.close()

    def give(self, job: Job[J] | None) -> None:
        self.job = job
        if job is not None:
            self.group = job.group
            with suppress(BrokenPipeError):  # a process that is gone shows when its outcome is read
                self.connection.send(job.content)

    def outcome(self) -> R | Failed:
        try:
            outcome: R | Failed = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.dead = True
            self._process.join(STOP_S)
            return Failed(f"its process ended with exit code {self._process.exitcode} (killed for its memory?)")
        return outcome

    def end(self) -> None:
        self.connection.close()
        self._process.terminate()
        self._process.join(STOP_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(connection: Connection, work: Callable[[J], R]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            job: J = connection.recv()
            try:
                outcome: R | Failed = work(job)
            except Exception as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                outcome = Failed(f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})")
            connection.send(outcome)
