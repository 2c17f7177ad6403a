"""What the end-to-end tests share: one request through Envoy, and questions about many."""

from __future__ import annotations

import asyncio
import io
import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp

from loadgen.demo.agents import CHAT, Record
from loadgen.stack.stack import Stack

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


def instances_of(records: Sequence[Record]) -> Mapping[str, list[str | None]]:
    """The instances that served each session, by turn."""
    turns: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        turns[record.session].append(record)
    return {name: [r.instance for r in sorted(some, key=lambda r: r.turn)] for name, some in turns.items()}


def stickiness(records: Sequence[Record]) -> float:
    """The share of follow-ups that returned to the instance of their session's first turn."""
    served = instances_of(records).values()
    returned = [instance == turns[0] for turns in served for instance in turns[1:]]
    return sum(returned) / len(returned)


def errors(records: Sequence[Record]) -> Counter[str | None]:
    """What went wrong, counted; empty where nothing did."""
    return Counter(record.error for record in records if not record.ok)


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
