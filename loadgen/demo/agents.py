"""An agent's side of a workload: sessions against any OpenAI endpoint, streaming, one record per request.

Follow-ups carry what the engine really answered, tool calls included, so a session's history is the one in its
engine's cache.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

import aiohttp
import msgspec

from loadgen.demo.sessions import Session
from loadgen.json_types import Json
from loadgen.replay.answers import following
from loadgen.replay.chat_request import CHAT, ChatRequest, connect


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What became of one request. Seconds; `started_s` since the run began. Absent values are None."""

    session: str
    turn: int
    started_s: float
    status: int | None  # None: no answer at all
    instance: str | None = None  # ip:port of the engine that answered
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    ttft_s: float | None = None  # to the first token
    latency_s: float | None = None  # to the last one
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


OnRecord = Callable[[Record], None]


async def run(
    base_url: str,
    sessions: Sequence[Session],
    concurrency: int | None = None,
    *,
    stream: bool = True,
    model: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 300.0,
    on_record: OnRecord = lambda record: None,
) -> list[Record]:
    """Run sessions side by side, `concurrency` of them at a time (all by default), turn after turn within each.

    Without `stream`, an answer's headers come with its last token: until then Envoy may still retry elsewhere. A
    session ends at its first failed request, for there is nothing to go on with. Never raises for what a server does;
    records come in the order in which requests ended.
    """
    records: list[Record] = []
    options: dict[str, Json] = {"temperature": 0, "stream": stream}
    if stream:
        options["stream_options"] = {"include_usage": True}
    if model:
        options["model"] = model
    slots = asyncio.Semaphore(concurrency or max(1, len(sessions)))
    began = time.monotonic()
    async with connect(base_url, headers=headers, timeout_s=timeout_s) as http:

        async def one(session: Session) -> None:
            async with slots:
                async for record in _session(http, session, options, began):
                    records.append(record)
                    on_record(record)

        async with asyncio.TaskGroup() as group:
            for session in sessions:
                group.create_task(one(session))
    return records


async def _session(
    http: aiohttp.ClientSession, session: Session, options: Mapping[str, Json], began: float
) -> AsyncIterator[Record]:
    messages: list[dict[str, Json]] = []
    for number, turn in enumerate(session.turns):
        await asyncio.sleep(turn.think_s)
        if turn.compact or not messages:
            messages = [{"role": "system", "content": session.system}]
        messages += following(turn.text, {} if turn.compact else messages[-1])
        body = {**options, "messages": messages, "tools": session.tools, "max_tokens": turn.max_tokens}
        exchange = ChatRequest()
        await exchange.send(http, msgspec.json.encode(body), stream=options["stream"])
        tokens = exchange.reading.tokens(turn.max_tokens)
        yield Record(
            session=session.id,
            turn=number,
            started_s=exchange.sent_s - began,
            status=exchange.status,
            instance=exchange.instance,
            prompt_tokens=tokens.prompt,
            cached_tokens=tokens.cached,
            completion_tokens=tokens.completion,
            ttft_s=None if exchange.first_s is None else exchange.first_s - exchange.sent_s,
            latency_s=exchange.end_s - exchange.sent_s,
            error=exchange.error,
        )
        if exchange.error is not None:
            return
        messages.append(exchange.reading.message())


__all__ = ["CHAT", "OnRecord", "Record", "run"]
