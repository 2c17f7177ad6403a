"""What is ours to bound in FULL_DUPLEX_STREAMED mode, through a real Envoy: a body's time and its size."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator

import pytest

from loadgen.stack.stack import Stack
from tests.support.agents import WORD, chat, complaints, decision, loads, post, until

# `serve` with a bound that a test can reach.
PROGRAM = "import sys; from extproc import cli; from extproc.processor import stream; "
PROGRAM += "stream.BODY_S = 1.0; sys.exit(cli.main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """One engine behind an Envoy that streams bodies both ways."""
    made = Stack(engines=1, body_mode="FULL_DUPLEX_STREAMED", policy={"max-body": 100_000})
    assert made.extproc is not None
    at = made.extproc.arguments.index("-m")
    made.extproc.arguments[at : at + 2] = ["-c", PROGRAM]
    with made as running:
        yield running


async def test_a_client_that_stops_sending_is_answered(stack: Stack) -> None:
    """Envoy's own timers see a client that is idle, for an hour; ours see a body that does not end."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", int(stack.url.rpartition(":")[2]))
    writer.write(head + b'{"messages": [')
    async with asyncio.timeout(20):
        answer = (await reader.readuntil(b"}}")).decode()
    writer.close()
    assert answer.startswith("HTTP/1.1 408 ")
    assert json.loads(answer.partition("\r\n\r\n")[2])["error"]["code"] == "request_timeout"
    await until(lambda: stack.state()["streams"] == 0)


async def test_a_body_beyond_the_bound_is_served(stack: Stack) -> None:
    """It streams through in chunks, and the engine answers what it would have answered anyway."""
    answer = await post(stack, chat(("user", WORD * 40_000), model="no-such-model"))
    assert answer.status == 404
    assert (await decision(stack, answer))["reason"] == "body_too_large"
    small = await post(stack, chat(("user", "hello")))
    assert (await decision(stack, small))["reason"] == "first_turn"


def test_nobody_complains(stack: Stack) -> None:
    """No spurious message, no failed stream, no load left behind."""
    for name in ("streams_failed", "spurious_msgs_received", "rejected_header_mutations"):
        assert stack.envoy_counter(f"http.agents.ext_proc.{name}") == 0
    assert not any(loads(stack))
    assert not [line for line in complaints(stack) if re.search("WARNING|ERROR", line)]
