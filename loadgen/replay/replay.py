"""Replays a workload through a live gateway: who sends what when, and what became of it. No files, no terminal.

Open loop: a session begins at its time, however the gateway fares. Closed loop: so many sessions at a time, each
beginning when another has ended. In both, a request waits for the end of its parent, carries what its parent was really
answered, and is not sent at all when its parent failed. A session and all that forked from it are one family: they
share a clock, and in the closed loop a place.

Texts are composed in a thread, ahead of their time: composing a long one would hold up everybody's tokens.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from urllib.parse import quote

import aiohttp
import msgspec

from loadgen.json_types import Json
from loadgen.replay.chat_request import CHAT, ENGINE_HEADER, ChatRequest
from loadgen.replay.script import Messages, Script, Turn, carried_on
from loadgen.results.records import Row
from loadgen.workloads.trace import Dispatch, Trace, TraceRequest

LATE_S = 0.05  # what is sent later than this after its time is late
AHEAD_S = 5.0  # how long before its time a session's first text is composed
PARENT_FAILED = "parent failed"  # the error of what was never sent
UNFINISHED = "unfinished"  # the error of what was in flight when the run was interrupted


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to replay. Times in seconds."""

    dispatch: Dispatch = Dispatch.THINK
    speed: float = 1.0  # times of the workload / times of the replay
    closed: int | None = None  # sessions at a time; None: open loop
    until_s: float = math.inf  # nothing is sent later
    model: str | None = None
    prefix: str = ""  # of the API's path
    instance_header: str = ENGINE_HEADER
    keep: Callable[[bytes], object] | None = None  # sees the body of each request as it is sent
    tag: str | None = None  # if given, `?request=TAG/ID` is added to the path, for access logs


@dataclass(slots=True)
class Counts:
    """A replay at this moment, in requests."""

    sent: int = 0
    in_flight: int = 0
    done: int = 0  # ended, well or not
    failed: int = 0  # what was not sent for its parent's failure included
    late: int = 0  # of those sent
    doubtful: int = 0  # answers whose usage says what cannot be
    short: int = 0  # replies that were to have an exact length, and have fewer tokens


@dataclass(slots=True)
class _Family:
    first: TraceRequest
    tasks: asyncio.TaskGroup
    roots: list[TraceRequest] = field(default_factory=list)  # that wait for no other request
    start_s: float = 0.0  # in the run's time
    opening: asyncio.Future[Turn] | None = None  # of `first`


class Replay:
    """One replay. `on_row` sees each request's row when it has ended; `counts` may be looked at all the while."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        trace: Trace,
        script: Script,
        options: Options,
        on_row: Callable[[Row], None],
        counts: Counts | None = None,
    ) -> None:
        self.counts = counts or Counts()
        self._http = http
        self._script = script
        self._options = options
        self._on_row = on_row
        self._families = _families(trace.requests)
        self._children: dict[str, list[TraceRequest]] = defaultdict(list)
        for request in trace.requests:
            if request.parent is not None:
                self._children[request.parent].append(request)
        self._began = 0.0
        self._composer = ThreadPoolExecutor(1, "texts")

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    async def run(self) -> None:
        """Send everything and wait for every end. Once. Cancelled, it leaves rows of what was in flight."""
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._options.closed:
                    self._began = time.monotonic()
                    waiting = iter(self._families)
                    for _ in range(min(self._options.closed, len(self._families))):
                        tasks.create_task(self._slot(waiting))
                else:
                    await self._open(tasks)
        finally:
            self._composer.shutdown(wait=False, cancel_futures=True)

    async def _open(self, tasks: asyncio.TaskGroup) -> None:
        for family in self._families:
            family.start_s = self._scaled(family.first.arrival_s - self._families[0].first.arrival_s)
            if family.start_s <= AHEAD_S:
                family.opening = self._compose(family.first)
        await asyncio.gather(*(family.opening for family in self._families if family.opening))
        self._began = time.monotonic()
        for family in self._families:
            if family.start_s > self._options.until_s:
                return
            await self._until(family.start_s - AHEAD_S)
            tasks.create_task(self._run(family))

    async def _slot(self, waiting: Iterator[_Family]) -> None:
        for family in waiting:
            family.opening = self._compose(family.first)
            await family.opening  # before the family's clock starts, for only this place waits for it
            family.start_s = self.now
            if family.start_s > self._options.until_s:
                return
            await self._run(family)

    async def _run(self, family: _Family) -> None:
        opening, family.opening = family.opening, None  # texts are long: none is held longer than it must
        async with family.tasks:
            for root in family.roots:
                ask = opening if opening and root is family.first else self._compose(root)
                self._set_off(family, root, self._due(family, root), [], ask)

    def _set_off(
        self, family: _Family, request: TraceRequest, due_s: float, before: Messages, ask: Awaitable[Turn]
    ) -> None:
        if due_s <= self._options.until_s:
            family.tasks.create_task(self._request(family, request, due_s, before, ask))

    async def _request(
        self, family: _Family, request: TraceRequest, due_s: float, before: Messages, ask: Awaitable[Turn]
    ) -> None:
        """Send a request at its time, after the conversation `before`, and set off those that waited for its end."""
        turn = await ask
        conversation = carried_on(before, turn)
        await self._until(due_s)
        body = self._body(request, conversation, turn.tools)
        children = self._children.get(request.id, ())
        exchange = ChatRequest()
        asks = [self._compose(child) for child in children]
        try:
            await self._send(request, due_s, exchange, body)
        finally:
            self._on_row(self._row(request, due_s, exchange, exact=not turn.tools))
        ended = exchange.end_s - self._began
        if exchange.error is not None:
            self._drop(family, request, ended)
            return
        conversation.append(exchange.reading.message())
        for child, next_ask in zip(children, asks, strict=True):
            self._set_off(family, child, self._due(family, child, ended), conversation, next_ask)

    async def _send(self, request: TraceRequest, due_s: float, exchange: ChatRequest, body: bytes) -> None:
        options, counts = self._options, self.counts
        query = "" if options.tag is None else f"?request={quote(f'{options.tag}/{request.id}', safe='/')}"
        counts.sent += 1
        counts.in_flight += 1
        counts.late += exchange.sent_s - self._began - due_s > LATE_S
        exchange.error = UNFINISHED
        if options.keep:
            options.keep(body)
        try:
            path = f"{options.prefix}{CHAT}{query}"
            await exchange.send(
                self._http, body, path=path, stream=request.stream, instance_header=options.instance_header
            )
        finally:
            counts.in_flight -= 1
            counts.done += 1
            counts.failed += exchange.error is not None

    def _drop(self, family: _Family, request: TraceRequest, ended: float) -> None:
        """Rows for all that waited, directly or not, for a request that failed at `ended`."""
        dropped = [(child, ended) for child in self._children.get(request.id, ())]
        for child, parent_end in dropped:
            due_s = self._due(family, child, parent_end)
            if due_s > self._options.until_s:
                continue
            dropped += [(grandchild, due_s) for grandchild in self._children.get(child.id, ())]
            self.counts.done += 1
            self.counts.failed += 1
            self._on_row(_planned(child, due_s, PARENT_FAILED))

    def _due(self, family: _Family, request: TraceRequest, parent_end: float | None = None) -> float:
        """When a request should be sent, in the run's time."""
        if parent_end is not None and self._options.dispatch is Dispatch.THINK:
            return parent_end + self._scaled(request.gap_s or 0.0)
        stamp = family.start_s + self._scaled(request.arrival_s - family.first.arrival_s)
        return stamp if parent_end is None else max(stamp, parent_end)

    def _row(self, request: TraceRequest, due_s: float, exchange: ChatRequest, *, exact: bool) -> Row:
        row = _planned(request, due_s, exchange.error)
        tokens = exchange.reading.tokens(request.output)
        self.counts.doubtful += tokens.doubtful
        row.sent_s = exchange.sent_s - self._began
        row.first_s = None if exchange.first_s is None else exchange.first_s - self._began
        row.end_s = None if exchange.error is not None else exchange.end_s - self._began
        row.input = tokens.prompt or request.input
        row.produced = exchange.reading.pieces if tokens.completion is None else tokens.completion
        row.local = tokens.cached
        row.instance, row.status = exchange.instance, exchange.status
        self.counts.short += exact and row.ok and row.produced < row.output
        return row

    def _body(self, request: TraceRequest, messages: Messages, tools: Sequence[Json]) -> bytes:
        body: dict[str, Json] = {"messages": messages, "temperature": 0, "max_tokens": request.output}
        body["stream"] = request.stream
        if request.stream:
            body["stream_options"] = {"include_usage": True}
        if tools:
            body["tools"] = tools
        else:
            body |= {"min_tokens": request.output, "ignore_eos": True}
        if self._options.model:
            body["model"] = self._options.model
        return msgspec.json.encode(body)

    def _compose(self, request: TraceRequest) -> asyncio.Future[Turn]:
        return asyncio.get_running_loop().run_in_executor(self._composer, self._script.ask, request)

    def _scaled(self, seconds: float) -> float:
        return seconds / self._options.speed

    async def _until(self, due_s: float) -> None:
        if (wait := due_s - self.now) > 0:
            await asyncio.sleep(wait)


def _families(requests: Sequence[TraceRequest]) -> list[_Family]:
    """Families in the order of their first requests."""
    families: list[_Family] = []
    by_request: dict[str, _Family] = {}
    by_session: dict[str, _Family] = {}
    for request in requests:
        family = by_session.get(request.session) if request.parent is None else by_request[request.parent]
        if family is None:
            family = _Family(request, asyncio.TaskGroup())
            families.append(family)
        if request.parent is None:
            family.roots.append(request)
        by_request[request.id] = family
        by_session.setdefault(request.session, family)
    return families


def _planned(request: TraceRequest, due_s: float, error: str | None) -> Row:
    return Row(
        request=request.id,
        session=request.session,
        turn=request.turn,
        trigger=request.trigger,
        due_s=due_s,
        sent_s=due_s,
        input=request.input,
        output=request.output,
        error=error,
    )


__all__ = ["LATE_S", "PARENT_FAILED", "UNFINISHED", "Counts", "Options", "Replay", "Script", "Turn"]
