"""What a router knows at this moment, seen from outside: for the tests of several routers and `bench/outage.py`."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import aiohttp

from loadgen.replay.chat_request import CHAT
from loadgen.stack.parts import Engine
from loadgen.stack.stack import Stack
from tests.support.agents import WORD, chat, until


def explained(stack: Stack, body: bytes) -> Mapping[str, Mapping[str, int]]:
    """What a router knows of each instance for this prompt, without counting a request: hit_bytes, in_flight ..."""
    request = urllib.request.Request(f"{stack.metrics_url}/debug/explain?path={CHAT}", body)
    with urllib.request.urlopen(request, timeout=10) as answer:
        instances: Mapping[str, Mapping[str, int]] = json.load(answer)["instances"]
        return instances


def hit(stack: Stack, engine: Engine, body: bytes) -> int:
    """Bytes of this prompt that the index says an engine has cached."""
    return explained(stack, body)[engine.address]["hit_bytes"]


async def directly(engine: Engine, body: bytes) -> None:
    """Send a request to an engine past all routers: only its events can tell them what it has cached since."""
    headers = {"content-type": "application/json"}
    async with aiohttp.ClientSession() as http, http.post(engine.url + CHAT, data=body, headers=headers) as answer:
        assert answer.status == 200
        await answer.read()


async def all_followed(stack: Stack, timeout_s: float = 20.0) -> None:
    """Wait until a router knows what each engine has just cached."""
    body = chat(("system", f"{os.urandom(8).hex()} {WORD * 20}"), ("user", "hello"))
    for engine in stack.engines:
        await directly(engine, body)
    await until(lambda: all(hit(stack, engine, body) for engine in stack.engines), timeout_s)


def follower_of(stack: Stack) -> int:
    """The process id of the child of `serve` that follows the engines' events."""
    assert stack.extproc is not None
    pid = stack.extproc.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return next(int(child) for child in children if b"\0follow\0" in Path(f"/proc/{child}/cmdline").read_bytes())
