"""An agent's side of a workload: sessions against any OpenAI endpoint, streaming, one record per request.

Follow-ups carry what the engine really answered, tool calls included, so a session's history is the one in its
engine's cache.
"""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

import aiohttp

from loadgen.chat import Json
from loadgen.workload import Session, Turn

CHAT = "/v1/chat/completions"
ENGINE_HEADER = "x-engine"  # set by simulated engines: ip:port


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
    model: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 300.0,
    on_record: OnRecord = lambda record: None,
) -> list[Record]:
    """Run sessions side by side, `concurrency` of them at a time (all by default), turn after turn within each.

    A session ends at its first failed request, for there is nothing to go on with. Never raises for what a server
    does; records come in the order in which requests ended.
    """
    records: list[Record] = []
    slots = asyncio.Semaphore(concurrency or max(1, len(sessions)))
    began = time.monotonic()
    # No keep-alive limit and no limit of connections: what is measured is the server, not this client's pool.
    async with aiohttp.ClientSession(
        base_url,
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        headers={"content-type": "application/json", **(headers or {})},
    ) as http:

        async def one(session: Session) -> None:
            async with slots:
                async for record in _session(http, session, model, began):
                    records.append(record)
                    on_record(record)

        async with asyncio.TaskGroup() as group:
            for session in sessions:
                group.create_task(one(session))
    return records


async def _session(
    http: aiohttp.ClientSession, session: Session, model: str | None, began: float
) -> AsyncIterator[Record]:
    messages: list[dict[str, Json]] = []
    for number, turn in enumerate(session.turns):
        await asyncio.sleep(turn.think_s)
        if turn.compact or not messages:
            messages = [{"role": "system", "content": session.system}]
        messages += _asks(turn, messages[-1])
        body: dict[str, Json] = {
            "messages": messages,
            "tools": session.tools,
            "max_tokens": turn.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if model:
            body["model"] = model
        answer = _Answer()
        started = time.monotonic()
        try:
            async with http.post(CHAT, data=io.BytesIO(json.dumps(body).encode())) as response:
                answer.status = response.status
                answer.instance = response.headers.get(ENGINE_HEADER)
                if response.status != 200:
                    answer.error = (await response.text())[:500] or response.reason
                else:
                    async for line in response.content:
                        answer.read(line, time.monotonic() - started)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            answer.error = f"{type(error).__name__}: {error}"
        record = answer.record(session.id, number, started - began, time.monotonic() - started)
        yield record
        if not record.ok:
            return
        messages.append(answer.message())


def _asks(turn: Turn, before: Mapping[str, Json]) -> list[dict[str, Json]]:
    """The messages of a turn: results for the calls of the reply before, or a user's message."""
    calls = before.get("tool_calls") or []
    if turn.compact or not calls:
        return [{"role": "user", "content": turn.text}]
    return [{"role": "tool", "tool_call_id": call["id"], "content": turn.text} for call in calls]


class _Answer:
    """A stream as it comes in."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.instance: str | None = None
        self.error: str | None = None
        self._ttft: float | None = None
        self._usage: dict[str, Json] = {}
        self._text: list[str] = []
        self._calls: dict[int, dict[str, Json]] = {}
        self._done = False

    def read(self, line: bytes, now: float) -> None:
        """One line of server-sent events. Raises ValueError for what is none."""
        if not line.startswith(b"data:"):
            return
        data = line[5:].strip()
        if data == b"[DONE]":
            self._done = True
            return
        chunk = json.loads(data)
        if "error" in chunk:
            self.error = json.dumps(chunk["error"])[:500]
            return
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices", ()):
            if self._ttft is None:
                self._ttft = now
            delta = choice["delta"]
            self._text.append(delta.get("content") or "")
            for part in delta.get("tool_calls") or ():
                call = self._calls.setdefault(
                    part["index"], {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                )
                call["id"] += part.get("id") or ""
                for key in ("name", "arguments"):
                    call["function"][key] += part["function"].get(key) or ""

    def message(self) -> dict[str, Json]:
        """The assistant's message for the history."""
        text = "".join(self._text)
        message: dict[str, Json] = {"role": "assistant", "content": text or None}
        if self._calls:
            message["tool_calls"] = list(self._calls.values())
        return message

    def record(self, session: str, turn: int, started: float, latency: float) -> Record:
        error = self.error
        if error is None and not self._done:
            error = "the stream ended before [DONE]"
        details = self._usage.get("prompt_tokens_details") or {}
        return Record(
            session=session,
            turn=turn,
            started_s=started,
            status=self.status,
            instance=self.instance,
            prompt_tokens=self._usage.get("prompt_tokens"),
            cached_tokens=details.get("cached_tokens"),
            completion_tokens=self._usage.get("completion_tokens"),
            ttft_s=self._ttft,
            latency_s=latency,
            error=error,
        )
