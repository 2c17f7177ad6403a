"""Bodies that take long to read, through a real Envoy: they go where their session is, and hold up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench.chaos.attacks.bodies import KINDS
from loadgen.stack.stack import Stack
from tests.support.agents import WORD, Answer, chat, decision, loads, post, until

UNKNOWN = "no-such-model"  # the engine says so before it tokenises millions of bytes


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Engines whose caches are what was routed to them."""
    with Stack(engines=2, cluster={"source": "routed"}) as running:
        yield running


async def until_read(stack: Stack, body: bytes) -> Answer:
    """The answer to a body, once it was read in time: the process may still be starting, on a busy machine."""
    async with asyncio.timeout(60):
        while True:
            answer = await post(stack, body)
            if (await decision(stack, answer)).get("reason") not in (None, "body_too_costly"):
                return answer


@pytest.mark.parametrize("size", [1_500_000, 4_000_000])
async def test_a_long_session_stays_where_it_is(stack: Stack, size: int) -> None:
    """Its follow-up finds the whole history, which another process has read and hashed."""
    question = ("user", f"{size} {'naïve ' + WORD * (size // len(WORD))}")
    first = await until_read(stack, chat(question, model=UNKNOWN))
    assert (await decision(stack, first))["reason"] == "first_turn"
    follow_up = chat(question, ("assistant", "yes"), ("user", "go on"), model=UNKNOWN)
    async with asyncio.timeout(60):
        while (made := await decision(stack, answer := await until_read(stack, follow_up)))["hit_bytes"] == 0:
            await asyncio.sleep(0.1)  # until the first is in the index
    assert (made["reason"], answer.engine) == ("stick", first.engine)
    assert made["hit_bytes"] > 0.99 * size


WORST = ("tiny messages", "empty lists unread", "rare ideographs", "token ids")


def worst(kind: str) -> tuple[str, bytes]:
    """2 MB of it, which no engine has to read."""
    path, make = KINDS[kind]
    return path, make(2 << 20).replace(b"{", b'{"model":"%b",' % UNKNOWN.encode(), 1)


async def test_nobodys_body_holds_up_another(stack: Stack) -> None:
    """While the worst bodies come one after the other, small requests are decided, health answers, and at the end no
    load is left. The worst go by load, with a reason."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{stack._ports.health}") as channel:
        healthy = health_pb2_grpc.HealthStub(channel).Check
        attack = [asyncio.create_task(post(stack, body, path)) for path, body in map(worst, WORST)]
        small = []
        while not all(task.done() for task in attack) or len(small) < 20:
            small.append(await post(stack, chat(("user", f"hello {len(small)}"))))
            assert (await healthy(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
    assert {answer.status for answer in small} == {200}
    assert {(await decision(stack, answer)).get("reason") for answer in small} == {"first_turn"}
    reasons = {(await decision(stack, await task)).get("reason") for task in attack}
    assert "body_too_costly" in reasons
    await until(lambda: sum(loads(stack)) == 0, 20)
