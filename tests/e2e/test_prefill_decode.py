"""Prefill and decode on different engines through a real Envoy: by sidecars, and by prefill requests of our own."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from loadgen.stack.stack import Stack
from tests.e2e.test_bodies import assert_clean
from tests.support.agents import (
    WORD,
    chat,
    complaints,
    decision,
    decisions,
    errors,
    get,
    loads,
    played,
    post,
    sessions,
    until,
)

ROLES = ("prefill", "prefill", "decode", "decode")
PREFILL, DECODE = slice(0, 2), slice(2, 4)


def disaggregated(mode: str, **options: Any) -> Stack:
    policy = {"disaggregation": mode, "prefill_timeout": "10"}
    return Stack(engines=4, roles=ROLES, sidecars=mode == "sidecar", policy=policy, **options)


def pulls(stack: Stack) -> float:
    """Prompts whose KV was pulled from the engine that computed it."""
    return float(sum(engine.metric("simulated:kv_pulls_total") for engine in stack.engines))


def unprefilled(stack: Stack) -> list[int]:
    pools = stack.state()["pools"]
    return [instance["unprefilled_bytes"] for pool in pools.values() for instance in pool["instances"].values()]


def prefill_stickiness(made: list[dict[str, Any]]) -> float:
    """The share of follow-ups whose prefill instance had most of the history cached."""
    stuck = [bool(one["hit_bytes"] > one["history_bytes"] / 2) for one in made if one["turn"]]
    return sum(stuck) / len(stuck)


@pytest.mark.parametrize(
    ("mode", "body_mode"), [("sidecar", "BUFFERED"), ("filter", "BUFFERED"), ("filter", "FULL_DUPLEX_STREAMED")]
)
async def test_both_modes_serve_the_workload(mode: str, body_mode: str) -> None:
    """24 sessions without a failure: prompts are computed on prefill instances, where sessions stay; the decode
    instances answer with the KV that they pulled; nothing is left behind."""
    with disaggregated(mode, body_mode=body_mode) as stack:
        rows = await played(stack, sessions(24, 4, system=14_000))
        assert not errors(rows)
        made = decisions(stack, 96)
        assert {row.instance for row in rows} == {engine.address for engine in stack.engines[DECODE]}
        prefill = Counter(one["prefill_instance"] for one in made)
        assert prefill.keys() == {engine.address for engine in stack.engines[PREFILL]}
        assert min(prefill.values()) >= 24
        assert prefill_stickiness(made) >= 0.9
        assert pulls(stack) == 96
        assert not any(engine.metric("simulated:kv_pulls_total") for engine in stack.engines[PREFILL])
        await until(lambda: not any(loads(stack)) and not any(unprefilled(stack)))
        assert_clean(stack)


@pytest.mark.parametrize("mode", ["sidecar", "filter"])
async def test_a_prefill_instance_is_killed(mode: str) -> None:
    """Not one of 24 sessions fails, the other prefill instance takes over, and the loads return to zero."""
    with disaggregated(mode) as stack:

        async def kill() -> None:
            await until(lambda: len(stack.access_log()) >= 20, 60)
            await asyncio.to_thread(stack.engines[0].kill)

        rows, _ = await asyncio.gather(played(stack, sessions(24, 4, system=7_000)), kill())
        assert not errors(rows)
        assert len(rows) == 96
        assert stack.engines[1].address in {one.get("prefill_instance") for one in decisions(stack, 96)}
        await until(lambda: not any(loads(stack)) and not any(unprefilled(stack)))
        assert stack.envoy_counter("http.agents.ext_proc.message_timeouts") == 0


@pytest.mark.parametrize("body_mode", ["BUFFERED", "FULL_DUPLEX_STREAMED"])
async def test_a_decode_instance_is_killed(body_mode: str) -> None:
    """Envoy retries with the params that are in the body already; the other decode instance pulls the KV, or computes
    what is gone. Not one request fails."""
    with disaggregated("filter", body_mode=body_mode) as stack:

        async def kill() -> None:
            await until(lambda: len(stack.access_log()) >= 10, 60)
            await asyncio.to_thread(stack.engines[2].kill)

        rows, _ = await asyncio.gather(played(stack, sessions(12, 4, system=7_000, stream=False)), kill())
        assert not errors(rows)
        assert len(rows) == 48
        assert {row.instance for row in rows} == {engine.address for engine in stack.engines[DECODE]}
        await until(lambda: not any(loads(stack)) and not any(unprefilled(stack)))


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """One prefill and two decode engines, prefill requests by ext_proc."""
    policy = {"disaggregation": "filter", "prefill_timeout": "2"}
    with Stack(engines=3, roles=("prefill", "decode", "decode"), policy=policy) as running:
        yield running


async def test_a_decision_names_both_instances(stack: Stack) -> None:
    """`instance` decodes, `prefill_instance` computes; hits are the latter's, and so the follow-up's."""
    opening = [("system", WORD * 60), ("user", "go")]
    first = await post(stack, chat(*opening))
    made = await decision(stack, first)
    assert first.engine == made["instance"] != made["prefill_instance"] == stack.engines[0].address
    reply = first.json["choices"][0]["message"]["content"]
    again = await decision(stack, await post(stack, chat(*opening, ("assistant", reply), ("user", "on"))))
    assert again["reason"] == "stick"
    assert again["hit_bytes"] > 3000


async def test_what_cannot_be_halved_is_served_whole(stack: Stack) -> None:
    """A body that is not JSON, another API, a request for several replies: a decode instance does all of it."""
    before = pulls(stack)
    decoders = {engine.address for engine in stack.engines[1:]}
    for answer, status in (
        (await post(stack, b"{"), 400),
        (await get(stack, "/v1/models"), 200),
        (await post(stack, b'{"prompt": "x"}', path="/tokenize"), 200),
        (await post(stack, chat(("user", "twice"), n=2)), 400),  # the simulated engine gives one
    ):
        assert answer.status == status
        assert answer.engine in decoders
        assert "prefill_instance" not in await decision(stack, answer)
    assert pulls(stack) == before


async def test_a_body_without_a_length_is_spliced_too(stack: Stack) -> None:
    """A client that sends its body in chunks gives Envoy no content-length to correct."""

    async def pieces() -> AsyncIterator[bytes]:
        body = chat(("user", WORD * 100))
        for start in range(0, len(body), 1_000):
            yield body[start : start + 1_000]

    before = pulls(stack)
    assert (await post(stack, pieces())).status == 200
    assert pulls(stack) == before + 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": WORD * 40, "max_tokens": 4}),
        ("/v1/messages", {"messages": [{"role": "user", "content": WORD * 40}], "max_tokens": 4}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": WORD}], "user": "x" * 2_000_000}),
    ],
)
async def test_other_apis_and_large_bodies_are_halved_too(stack: Stack, path: str, body: dict[str, Any]) -> None:
    """Each API in which vLLM takes kv_transfer_params, and a body of megabytes."""
    before = pulls(stack)
    answer = await post(stack, json.dumps(body).encode(), path=path)
    assert answer.status == 200
    assert (await decision(stack, answer))["prefill_instance"] == stack.engines[0].address
    assert pulls(stack) == before + 1


async def test_a_client_steers_no_prefill(stack: Stack) -> None:
    """Neither a header nor params of a client's own decide where its prompt is computed, or from where KV is pulled."""
    lie = {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": 1, "remote_request_id": "x"}
    before = pulls(stack)
    answer = await post(
        stack, chat(("user", "lie"), kv_transfer_params=lie), headers={"x-prefiller-host-port": "1.1.1.1:1"}
    )
    assert answer.status == 200
    assert (await decision(stack, answer))["prefill_instance"] == stack.engines[0].address
    assert pulls(stack) == before + 1
    assert sum(engine.metric("simulated:kv_pulls_failed_total") for engine in stack.engines) == 0


def test_envoy_has_nothing_to_complain_about(stack: Stack) -> None:
    """No message of ours came out of turn or too late."""
    assert_clean(stack)
    assert not complaints(stack)


async def test_envoy_waits_for_a_slow_prefill_and_a_client_need_not() -> None:
    """A prefill may take longer than Envoy's message_timeout of a second. When clients hang up meanwhile, the prefill
    instance stops computing: it would be busy for minutes otherwise."""
    policy = {"disaggregation": "filter"}
    slow = ["--time-scale", "25"]
    with Stack(
        engines=2, roles=("prefill", "decode"), policy=policy, engine_options=slow, message_timeout="1s"
    ) as stack:
        prefill, decode = stack.engines
        answer = await post(stack, chat(("user", WORD * 250), max_tokens=2))
        assert answer.status == 200
        assert answer.engine == decode.address
        assert (await decision(stack, answer))["prefill_instance"] == prefill.address

        bodies = [chat(("user", f"{number} {WORD * 300}")) for number in range(20)]
        asked = [asyncio.create_task(post(stack, body, timeout_s=4)) for body in bodies]
        await until(lambda: prefill.metric("vllm:num_requests_running") > 0)
        gone = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(one, TimeoutError) for one in gone) > 10
        await until(lambda: not any(loads(stack)) and not any(unprefilled(stack)))
        await until(lambda: not prefill.metric("vllm:num_requests_running"))
        assert not prefill.metric("vllm:num_requests_waiting")
        assert_clean(stack)
