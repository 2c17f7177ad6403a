"""What the end-to-end tests share: one request through Envoy, agents' sessions, and questions about them."""

from __future__ import annotations

import asyncio
import io
import json
import math
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import aiohttp

from loadgen.engine.options import MODEL_DIR
from loadgen.replay.chat_request import CHAT
from loadgen.replay.replay import Options
from loadgen.replay.run import Gateway, play
from loadgen.replay.words import Words
from loadgen.results import measures
from loadgen.results.records import Row
from loadgen.stack.stack import Stack
from loadgen.workloads.profiles import PROFILES, fixed, lognormal
from loadgen.workloads.synthetic import generate_whole
from loadgen.workloads.trace import Trace

WORD = "the quick brown fox jumps over the lazy dog and runs on "


class Answer(NamedTuple):
    """What a client got. `path` is unlike any other request's, for the access log."""

    path: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def engine(self) -> str | None:
        """The engine that answered, ip:port."""
        return self.headers.get("x-engine")

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def chat(*messages: tuple[str, str], **fields: Any) -> bytes:
    """A chat request; `messages` are (role, content)."""
    made = [{"role": role, "content": content} for role, content in messages]
    return json.dumps({"messages": made, "max_tokens": 4, "temperature": 0, **fields}).encode()


async def post(
    stack: Stack, body: Any, path: str = CHAT, headers: Mapping[str, str] | None = None, timeout_s: float = 60.0
) -> Answer:
    """One POST through Envoy on a connection of its own."""
    sent = {"content-type": "application/json", **(headers or {})}
    if isinstance(body, bytes):
        body = io.BytesIO(body)
    return await _request(stack, "POST", path, timeout_s, data=body, headers=sent)


async def get(stack: Stack, path: str) -> Answer:
    """One GET through Envoy."""
    return await _request(stack, "GET", path, 60.0)


async def _request(stack: Stack, method: str, path: str, timeout_s: float, **options: Any) -> Answer:
    unique = f"{path}?request={uuid.uuid4().hex}"
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with (
        aiohttp.ClientSession(timeout=timeout) as http,
        http.request(method, stack.url + unique, **options) as answer,
    ):
        return Answer(unique, answer.status, dict(answer.headers), await answer.read())


async def decision(stack: Stack, answer: Answer) -> dict[str, Any]:
    """What ext_proc decided of a request; {} where it said nothing."""
    async with asyncio.timeout(10):
        while True:
            for entry in stack.access_log():
                if entry["path"] == answer.path:
                    return entry["smetric"] or {}
            await asyncio.sleep(0.02)


def decisions(stack: Stack, at_least: int) -> list[dict[str, Any]]:
    """The `smetric` metadata of all requests so far, in the order of their ends; {} where ext_proc said nothing."""
    return [entry["smetric"] or {} for entry in stack.access_log(at_least)]


def sessions(
    count: int,
    turns: int,
    *,
    system: int = 1_400,
    text: int = 1_500,
    reply: int = 64,
    seed: int = 0,
    stream: bool = True,
) -> Trace:
    """Agents' sessions: a shared system prompt of `system` tokens, tools included, and about `text` more a turn, sent
    without thinking. Replies are the engine's own: words or calls, of at most `reply` tokens."""
    added = lognormal(text, 0.25, most=1.5 * text, least=0.5 * text)
    profile = replace(
        PROFILES["demo"],
        turns=fixed(turns),
        shared=((system, 1.0),),
        private=system,
        first=added,
        single=added,
        append=added,
        output=fixed(reply),
        agent_gap=fixed(1e-6),
    )
    trace = generate_whole(profile, sessions=count, rate=1.0, seed=seed)
    return replace(trace, requests=[replace(request, stream=stream) for request in trace.requests])


async def played(stack: Stack, trace: Trace, at_a_time: int = 1_000) -> list[Row]:
    """The rows of a trace's requests through Envoy, in the order of their ends; what follows a failed one is failed."""
    rows: list[Row] = []
    gateway = Gateway(url=stack.url, headers={}, timeout_s=300.0)
    await play(gateway, trace, Words(trace, MODEL_DIR), Options(closed=at_a_time), rows.append)
    return rows


def first_instances(rows: Sequence[Row]) -> Counter[str | None]:
    """How many sessions began on each instance."""
    return Counter(row.instance for row in rows if row.turn == 0)


def stickiness(rows: Sequence[Row]) -> float:
    """The share of follow-ups that returned to the instance of their session's first turn."""
    return measures.stickiness(rows, (0.0, math.inf))[0]


def errors(rows: Sequence[Row]) -> Counter[str | None]:
    """What went wrong, counted; empty where nothing did."""
    return Counter(row.error for row in rows if not row.ok)


def loads(stack: Stack) -> list[int]:
    """Requests in flight of every instance, as ext_proc counts them."""
    pools = stack.state()["pools"]
    return [instance["in_flight"] for pool in pools.values() for instance in pool["instances"].values()]


async def until(condition: Any, timeout_s: float = 15.0) -> None:
    """Wait until a synchronous condition holds."""
    async with asyncio.timeout(timeout_s):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.05)


def complaints(stack: Stack) -> list[str]:
    """Lines of ext_proc's log that an operator would have to read."""
    assert stack.extproc is not None
    text = stack.extproc.log.read_text("utf-8", "replace")
    return [line for line in text.splitlines() if " INFO " not in line]
