"""Two simulated engines share a request: the KV moves as `kv_transfer_params` say, and the books of blocks balance."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from loadgen.stack.parts import Engine

EXPORT = {"do_remote_decode": True, "do_remote_prefill": False, "remote_block_ids": None}
PROMPT = " ".join(f"word{number}" for number in range(200))


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Engine]]:
    """A prefill and a decode engine."""
    started = [Engine(number, tmp_path_factory.mktemp("engines"), [], events=False) for number in range(2)]
    for engine in started:
        engine.start()
    for engine in started:
        engine.wait_ready()
    yield started
    for engine in started:
        engine.stop()


async def chat(engine: Engine, text: str, **fields: Any) -> tuple[int, Any]:
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8, **fields}
    async with (
        aiohttp.ClientSession() as http,
        http.post(
            f"{engine.url}/v1/chat/completions",
            data=io.BytesIO(json.dumps(body).encode()),
            headers={"content-type": "application/json"},
        ) as answer,
    ):
        return answer.status, await answer.json()


def usage(engine: Engine) -> float:
    return engine.metric("vllm:kv_cache_usage_perc")


async def test_a_prompt_is_computed_on_one_engine_and_continued_on_another(engines: list[Engine]) -> None:
    """The decode engine replies as if it had computed the prompt, finds it in its cache afterwards, and the prefill
    engine holds the blocks no longer than until they are pulled."""
    prefill, decode = engines
    status, first = await chat(prefill, PROMPT, max_tokens=1, kv_transfer_params=EXPORT)
    params = first["kv_transfer_params"]
    assert status == 200
    assert params["do_remote_prefill"] is True
    assert params["do_remote_decode"] is False
    assert params["remote_port"] == prefill.port
    assert params["remote_block_ids"][0]
    assert usage(prefill) > 0
    status, answer = await chat(decode, PROMPT, kv_transfer_params=params)
    assert status == 200
    assert usage(prefill) == 0
    assert decode.metric("simulated:kv_pulls_total") == 1
    again = (await chat(decode, PROMPT))[1]
    assert again["choices"][0]["message"] == answer["choices"][0]["message"]
    details = again["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] >= again["usage"]["prompt_tokens"] - 16


async def test_blocks_that_are_gone_are_computed_again(engines: list[Engine]) -> None:
    """Params that were used before, name nobody, or are no address cost the transfer and never the request."""
    prefill, decode = engines
    params = (await chat(prefill, "twice", max_tokens=1, kv_transfer_params=EXPORT))[1]["kv_transfer_params"]
    for used in (params, params, params | {"remote_port": 1}, params | {"remote_host": "//"}, {"do_remote_prefill": 1}):
        assert (await chat(decode, "twice", kv_transfer_params=used))[0] == 200
    assert decode.metric("simulated:kv_pulls_failed_total") == 4
    assert (await chat(decode, "twice", kv_transfer_params=[1]))[0] == 400
    assert usage(prefill) == usage(decode) == 0


async def test_a_prefill_that_nobody_waits_for_keeps_nothing(engines: list[Engine]) -> None:
    """A stream cannot carry params, and a client that hangs up gets none: neither pins blocks."""
    prefill = engines[0]
    await chat_stream(prefill, PROMPT)
    assert usage(prefill) == 0


async def chat_stream(engine: Engine, text: str) -> None:
    body = {"messages": [{"role": "user", "content": text}], "stream": True, "kv_transfer_params": EXPORT}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{engine.url}/v1/chat/completions", json=body | {"max_tokens": 2}) as answer,
    ):
        assert answer.status == 200
        await answer.read()


def test_the_log_is_quiet(engines: list[Engine]) -> None:
    """None of the above was an error to the engines."""
    for engine in engines:
        assert "Traceback" not in Path(engine.log).read_text("utf-8")
