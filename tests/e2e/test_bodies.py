"""Every body mode and every kind of body through a real Envoy; Envoy's own counters must stay clean."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Iterator

import pytest

from loadgen.stack.stack import Stack
from tests.support.agents import WORD, Answer, chat, complaints, decision, get, loads, post, until

SPURIOUS = (
    "streams_failed",
    "spurious_msgs_received",
    "message_timeouts",
    "failure_mode_allowed",
    "rejected_header_mutations",
)


def assert_clean(stack: Stack) -> None:
    """Envoy had nothing to complain about, and neither had we."""
    counters = {name: stack.envoy_counter(f"http.agents.ext_proc.{name}") for name in SPURIOUS}
    assert counters == dict.fromkeys(SPURIOUS, 0)
    assert stack.envoy_counter("http.agents.ext_proc.streams_started") > 0
    assert not complaints(stack)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(engines=2) as running:
        yield running


async def reason(stack: Stack, answer: Answer) -> str | None:
    return (await decision(stack, answer)).get("reason")


DEEP = b"[" * 10_000 + b"]" * 10_000
GZIPPED = gzip.compress(chat(("user", "hello")))


@pytest.mark.parametrize(
    ("body", "expected", "statuses"),
    [
        (b"{", "unreadable_body", {400}),
        (b"", "no_body", {400}),
        (b"null", "unreadable_body", {400}),
        (b"\xff\xfe\x00", "unreadable_body", {400}),
        (DEEP, "unreadable_body", {400}),
        (b'{"messages": ' + DEEP + b"}", "unreadable_body", {400}),
        (b'{"messages": 5}', "unreadable_body", {400}),
        (b'{"messages": []}', None, {400}),
        (b'{"messages": [{"role": 5, "content": {}}], "model": []}', "unreadable_body", {400}),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "unreadable_body", {400}),
        (chat(("narrator", "once upon a time")), None, {200, 400}),
        (chat(("user", "hi"), model="no-such-model"), None, {404}),
        (chat(("user", "hi"), chat_template_kwargs={"x": 1}), "first_turn", {200}),
        (GZIPPED, "unreadable_body", {200, 400, 415}),
    ],
    ids=lambda value: repr(value)[:30] if isinstance(value, bytes) else None,
)
async def test_a_bad_body_reaches_an_engine(
    stack: Stack, body: bytes, expected: str | None, statuses: set[int]
) -> None:
    """The engine judges what we cannot read: its own error reaches the client, and never one of ours."""
    encoding = {"content-encoding": "gzip"} if body is GZIPPED else None
    answer = await post(stack, body, headers=encoding)
    assert answer.status in statuses
    assert answer.engine in {engine.address for engine in stack.engines}
    assert expected is None or await reason(stack, answer) == expected


async def test_bodies_are_never_changed(stack: Stack) -> None:
    """What the engine counts as the prompt is what it counts without us."""
    body = chat(("system", "s"), ("user", "é\u0301 \U0001f600 \r\n"), stream_options=None)
    through = await post(stack, body)
    tokens = (await post(stack, body, path="/tokenize")).json["count"]
    assert through.json["usage"]["prompt_tokens"] == tokens


@pytest.mark.parametrize(
    ("size", "why"), [(1_500_000, "first_turn"), (4_000_000, "first_turn"), (30_000_000, "body_too_large")]
)
async def test_large_bodies_pass(stack: Stack, size: int, why: str) -> None:
    """Agents send 0.2 to 4 MB; Envoy's default limit of 1 MiB would answer 413. What is longer than a route reads goes
    by load."""
    answer = await post(stack, chat(("user", WORD * (size // len(WORD))), model="no-such-model"))
    assert answer.status == 404  # the engine's own word, before it tokenises millions of bytes
    assert answer.engine is not None
    assert await reason(stack, answer) == why


async def test_a_body_in_chunks_of_one_byte(stack: Stack) -> None:
    """How a client cuts its body is of no interest."""

    async def pieces() -> AsyncIterator[bytes]:
        for byte in chat(("user", "slow")):
            yield bytes([byte])

    answer = await post(stack, pieces())
    assert answer.status == 200
    assert await reason(stack, answer) == "first_turn"


async def test_other_paths_are_routed_by_load(stack: Stack) -> None:
    """A request without body, and an API that we do not render, reach an engine and say why."""
    listed = await get(stack, "/v1/models")
    assert listed.status == 200
    assert await reason(stack, listed) == "no_body"
    counted = await post(stack, b'{"prompt": "x"}', path="/tokenize")
    assert counted.status == 200
    assert await reason(stack, counted) == "unsupported_api"


async def test_clients_that_hang_up_leave_no_load(stack: Stack) -> None:
    """Aborts at any moment of a request give the load back."""

    async def hang_up(number: int) -> None:
        with pytest.raises((asyncio.TimeoutError, TimeoutError)):
            await post(stack, chat(("user", WORD * 500), max_tokens=2_000), timeout_s=0.02 + 0.01 * (number % 10))

    await asyncio.gather(*(hang_up(number) for number in range(100)))
    await until(lambda: not any(loads(stack)))
    await until(lambda: stack.state()["streams"] == 0)


def test_envoy_has_nothing_to_complain_about(stack: Stack) -> None:
    """After all of the above: no failed stream, no spurious message, no time-out, no line in our log."""
    assert_clean(stack)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("FULL_DUPLEX_STREAMED", "first_turn"),
        ("STREAMED", "body_not_sent"),
        ("NONE", "body_not_sent"),
        ("BUFFERED_PARTIAL", "first_turn"),
    ],
)
async def test_every_body_mode(mode: str, expected: str) -> None:
    """Each mode routes and answers as Envoy wants; those that show the body too late decide by load and say so."""
    with Stack(engines=2, body_mode=mode) as stack:
        for size in (10, 100_000, 1_500_000):
            body = chat(("user", WORD * (1 + size // len(WORD))), model="tiny" if size < 1_000_000 else "none")
            answer = await post(stack, body)
            assert answer.status == (200 if size < 1_000_000 else 404)
            assert answer.engine is not None
            assert await reason(stack, answer) == expected

        async def pieces() -> AsyncIterator[bytes]:
            body = chat(("user", WORD * 2_000))
            for start in range(0, len(body), 10_000):
                yield body[start : start + 10_000]

        chunked = await post(stack, pieces())
        assert chunked.status == 200
        assert json.loads(chunked.body)["usage"]["prompt_tokens"] > 1000
        listed = await get(stack, "/v1/models")
        assert await reason(stack, listed) == "no_body"
        await until(lambda: not any(loads(stack)))
        assert_clean(stack)
