"""Processes that read large bodies, so that no body holds the loop: bytes in, bytes out, within a budget of time.

It owns the processes, their queue and its bounds, and knows nothing of what they read (`reader.py` is their program).
The shortest body goes first: who sends the longest waits for all others, not they for him. What waits is bounded in
bytes, because a queue of bodies is memory that clients decide on. A process that dies, or answers far too late, is
replaced, and costs the one request that it had its reading.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from extproc.app.reader_job import LENGTHS

_log = logging.getLogger(__name__)

Body = bytes | memoryview

BUDGET_S = 0.5  # from the decision's begin on, waiting included: half of the message timeout that we ship
HANGS_S = 2.0  # a process that has not answered by then, although it ends its reading itself, hangs
WAITING_BYTES = 64 << 20  # bodies that wait or are read; four of the largest that a route takes by default
START_S = 30.0  # until a new process must be ready: imports and a vocabulary, on a busy machine
RESTART_S = 0.5  # between two starts of a process that does not live


class OverBudget(Exception):
    """The body could not be read in time: too costly, or too many others before it."""


@dataclass(order=True, slots=True)
class _Waiting:
    """A question in the queue; the shortest body first, then the oldest."""

    size: int
    number: int
    head: Callable[[float], bytes] = field(compare=False)  # of the seconds for which the answer is worth anything
    body: Body = field(compare=False)
    due: float = field(compare=False)
    answer: asyncio.Future[bytes] = field(compare=False)


class Readers:
    """`count` processes that answer questions. All methods must be called in the event loop."""

    def __init__(self, command: Sequence[str], setup: bytes, *, count: int = 1, budget_s: float = BUDGET_S) -> None:
        """`command` starts a process; `setup` is the head of the first frame that it gets, before all questions."""
        self._command = command
        self._setup = setup
        self._budget_s = budget_s
        self._queue: asyncio.PriorityQueue[_Waiting] = asyncio.PriorityQueue()
        self._bytes = 0
        self._numbers = itertools.count()
        self._ending: set[asyncio.Task[None]] = set()
        self._ready = asyncio.Event()
        self._keepers = [asyncio.create_task(self._keep(), name="reader") for _ in range(count)]

    async def ask(self, head: Callable[[float], bytes], body: Body) -> bytes:
        """The answer to a question: `head` makes its head of the seconds that are left. Raises OverBudget."""
        if self._bytes + len(body) > WAITING_BYTES:
            raise OverBudget("too many large bodies wait")
        loop = asyncio.get_running_loop()
        question = _Waiting(
            len(body), next(self._numbers), head, body, loop.time() + self._budget_s, loop.create_future()
        )
        self._bytes += len(body)
        self._queue.put_nowait(question)
        try:
            async with asyncio.timeout(self._budget_s):
                return await question.answer
        except TimeoutError:
            raise OverBudget("reading the body took too long") from None
        finally:
            question.answer.cancel()
            question.body = b""  # it may stand in the queue for a while yet
            self._bytes -= len(body)

    async def ready(self) -> None:
        """Wait until a process can answer."""
        await self._ready.wait()

    async def close(self) -> None:
        """End the processes; whoever waits for one of them waits until the budget is over."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*self._ending)

    async def _keep(self) -> None:
        """One process after the other, until cancelled."""
        while True:
            process = None
            try:
                process = await _Process.start(self._command)
                async with asyncio.timeout(START_S):
                    await process.ask(self._setup, b"")
                self._ready.set()
                while await self._serve(process):
                    pass
            except (TimeoutError, OSError, EOFError) as error:
                _log.error("a reader of large bodies failed, and is started again: %s", error or "it hangs")
            finally:
                if process is not None:
                    self._end(process)
            await asyncio.sleep(RESTART_S)

    async def _serve(self, process: _Process) -> bool:
        """Answer the next question; False once the process has ended of itself.

        Raises TimeoutError, OSError and EOFError where the process fails over it.
        """
        question = await self._next(process)
        if question is None:
            return False
        if question.answer.done():
            return True  # nobody waits any more
        left = question.due - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(HANGS_S):
                answer = await process.ask(question.head(left), question.body)
        except (TimeoutError, OSError, EOFError) as error:
            if not question.answer.done():
                question.answer.set_exception(OverBudget("the reader failed over it"))
            raise EOFError("it died over a body" if isinstance(error, EOFError) else str(error)) from error
        if not question.answer.done():
            question.answer.set_result(answer)
        return True

    async def _next(self, process: _Process) -> _Waiting | None:
        """The next question; None where the process ends before there is one."""
        waiting, ended = asyncio.create_task(self._queue.get()), asyncio.create_task(process.ended())
        try:
            await asyncio.wait((waiting, ended), return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                return waiting.result()
            if waiting.done():
                self._queue.put_nowait(waiting.result())
            return None
        finally:
            waiting.cancel()
            ended.cancel()

    def _end(self, process: _Process) -> None:
        """Kill it; whoever is cancelled cannot wait until it is gone, so a task does."""
        process.kill()
        task = asyncio.create_task(process.ended())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


class _Process:
    """A child, and the socket to it."""

    def __init__(
        self, child: asyncio.subprocess.Process, answers: asyncio.StreamReader, asks: asyncio.StreamWriter
    ) -> None:
        self._child, self._answers, self._asks = child, answers, asks

    @classmethod
    async def start(cls, command: Sequence[str]) -> _Process:
        """Start one. It does not stop with the terminal's Ctrl-C: its parent ends it, after the drain."""
        ours, its = socket.socketpair()
        try:
            answers, asks = await asyncio.open_unix_connection(sock=ours)
            child = await asyncio.create_subprocess_exec(*command, stdin=its.fileno(), start_new_session=True)
        except BaseException:
            ours.close()
            raise
        finally:
            its.close()
        return cls(child, answers, asks)

    async def ask(self, head: bytes, body: Body) -> bytes:
        """Raises OSError and EOFError where the process dies over it."""
        self._asks.writelines((LENGTHS.pack(len(head), len(body)), head))
        if body:
            self._asks.write(body)
        await self._asks.drain()
        length, _ = LENGTHS.unpack(await self._answers.readexactly(LENGTHS.size))
        return await self._answers.readexactly(length)

    async def ended(self) -> None:
        await self._child.wait()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._child.kill()
        self._asks.close()


def command() -> Sequence[str]:
    """What starts a reader."""
    return [sys.executable, "-m", "extproc.app.reader"]
