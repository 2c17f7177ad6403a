"""Against real vLLM: every predicted hit is held against the engine's own `cached_tokens`. Run by `make test-vllm`.

Two vLLM instances on the CPU (tests/vllm/setup.sh, 3.5 GB), a real Envoy, a real Redis. The tiny model's replies are
words that re-tokenise to themselves, so the engine's cache can be compared byte by byte.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from extproc.prompts.tokenizer.vocabulary import Vocabulary
from loadgen.replay.script import Messages, carried_on
from loadgen.replay.words import Words
from loadgen.stack.envoy_config import HOST, EnvoySettings, render
from loadgen.stack.parts import envoy_program, get, redis_server
from loadgen.stack.processes import Child, free_port, listens
from loadgen.workloads.trace import TraceRequest
from tests.support.agents import sessions

VENV = os.environ.get("SMETRIC_VLLM")
pytestmark = [
    pytest.mark.skipif(VENV is None, reason="needs a real vLLM: make test-vllm"),
    pytest.mark.timeout(1800),
]

PROMPT_BLOCK = 256  # bytes
ENGINE_BLOCK = 32  # tokens: on the CPU vLLM wants multiples of 32
START_S = 600.0  # a real engine compiles and profiles first; on a crowded machine that takes minutes


class Real:
    """Two real engines behind the real gateway, which serve the model that a script beside this file makes."""

    def __init__(self, directory: Path, maker: str = "make_model.py", options: Sequence[str] = ()) -> None:
        self.directory = directory
        self._maker, self._options = maker, options
        self.model = directory / "model"
        self.access_log = directory / "access.log"
        self.port, self.admin, self.listen, self.health, self.metrics, self.redis_port = (free_port() for _ in range(6))
        self.engines = [self._engine(number) for number in range(2)]
        settings = EnvoySettings(
            port=self.port,
            admin_port=self.admin,
            access_log=self.access_log,
            model_dir=self.model,
            engines=[
                {"port": port, "kv_events": f"tcp://{HOST}:{events}", "kv_replay": f"tcp://{HOST}:{replay}"}
                for port, events, replay, _ in self.engines
            ],
            extproc_ports=[self.listen],
            health_port=self.health,
        )
        (directory / "envoy.yaml").write_text(render(settings))

    def _engine(self, number: int) -> tuple[int, int, int, Child]:
        port, events, replay = (free_port() for _ in range(3))
        config = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{events}",
            "topic": "",
            "replay_endpoint": f"tcp://*:{replay}",
        }
        arguments = [f"{VENV}/bin/vllm", "serve", str(self.model), "--served-model-name", "tiny", "--dtype", "float32"]
        arguments += [
            "--host",
            HOST,
            "--port",
            str(port),
            "--block-size",
            str(ENGINE_BLOCK),
            "--max-model-len",
            "16384",
        ]
        arguments += ["--num-gpu-blocks-override", "1024", "--max-num-batched-tokens", "2048", "--max-num-seqs", "8"]
        arguments += ["--enforce-eager", "--enable-prefix-caching", "--enable-prompt-tokens-details"]
        arguments += [
            "--enable-auto-tool-choice",
            "--tool-call-parser",
            "hermes",
            "--kv-events-config",
            json.dumps(config),
            *self._options,
        ]
        log = self.directory / f"vllm-{number}.log"
        return (
            port,
            events,
            replay,
            Child(f"vllm-{number}", arguments, log, lambda: get(f"http://{HOST}:{port}/health") is not None),
        )

    def prepare(self) -> None:
        """Make the model, and set what engines look for in their environment."""
        environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        environment |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        os.environ.update(environment)
        subprocess.run([f"{VENV}/bin/python", str(Path(__file__).parent / self._maker), str(self.model)], check=True)

    def start_engine(self, stack: ExitStack) -> None:
        """One engine, and nothing before it."""
        self.prepare()
        child = self.engines[0][-1]
        stack.callback(child.stop)
        child.start()
        child.wait_ready(START_S)

    def start(self, stack: ExitStack) -> None:
        """Everything, engines one after the other: two cores carry one start at a time."""
        self.prepare()
        redis = [redis_server(), "--port", str(self.redis_port), "--bind", HOST, "--save", ""]
        serve = [sys.executable, "-m", "extproc", "serve", "--envoy-yaml", str(self.directory / "envoy.yaml")]
        serve += ["--listen", f"{HOST}:{self.listen}", "--health", f"{HOST}:{self.health}"]
        serve += ["--metrics", f"{HOST}:{self.metrics}", "--index", f"redis://{HOST}:{self.redis_port}/0?budget_ms=500"]
        envoy = [
            envoy_program(),
            "-c",
            str(self.directory / "envoy.yaml"),
            "--disable-hot-restart",
            "--log-level",
            "error",
        ]
        envoy += ["--file-flush-interval-msec", "50", "--file-flush-min-size-kb", "1"]
        children = [child for *_, child in self.engines]
        children.append(Child("redis", redis, self.directory / "redis.log", lambda: listens(self.redis_port)))
        children.append(Child("extproc", serve, self.directory / "extproc.log", self.follows))
        children.append(Child("envoy", envoy, self.directory / "envoy.log", lambda: listens(self.port)))
        for child in children:
            stack.callback(child.stop)
            child.start()
            child.wait_ready(START_S)

    def follows(self) -> bool:
        """Whether ext_proc knows both caches exactly."""
        state = json.loads(get(f"http://{HOST}:{self.metrics}/debug/state") or b"{}")
        instances = state.get("pools", {}).get("engines", {}).get("instances", {}).values()
        return len(instances) == 2 and all((i["events"] or {}).get("state") == "exact" for i in instances)

    async def decision(self, path: str) -> dict[str, Any]:
        async with asyncio.timeout(30):
            while True:
                for line in self.access_log.read_text().splitlines():
                    entry: dict[str, Any] = json.loads(line)
                    if entry["path"] == path:
                        return entry
                await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    with ExitStack() as stack:
        running = Real(tmp_path_factory.mktemp("vllm"))
        running.start(stack)
        yield running


class Row(NamedTuple):
    """One sequential request: what was predicted, and what the engine says. Bytes."""

    session: str
    turn: int
    engine: str
    reason: str
    prompt: int
    predicted: int
    cached: int
    engine_block: int  # the first block of the prompt that the engine had not

    @property
    def error(self) -> int:
        return self.predicted - self.cached


async def exchange(real: Real, http: aiohttp.ClientSession, body: dict[str, Any]) -> tuple[str, Any]:
    """One request through the gateway; its path in the access log, and the answer."""
    path = f"/v1/chat/completions?request={time.monotonic_ns()}"
    async with http.post(f"http://{HOST}:{real.port}{path}", json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return path, answer


async def one(real: Real, http: aiohttp.ClientSession, vocabulary: Vocabulary, body: dict[str, Any]) -> tuple[Row, Any]:
    port = real.engines[0][0]  # /tokenize does not touch the cache, and both engines tokenise alike
    asked = {key: body[key] for key in ("messages", "tools")}
    async with http.post(f"http://{HOST}:{port}/tokenize", json=asked) as response:
        tokens = (await response.json())["tokens"]
    path, answer = await exchange(real, http, body)
    entry = await real.decision(path)
    made = entry["smetric"]
    details = answer["usage"]["prompt_tokens_details"] or {}
    count = details.get("cached_tokens") or 0
    cached = len(vocabulary.decode(tokens[:count]))
    engine_block = len(vocabulary.decode(tokens[count : count + ENGINE_BLOCK]))
    assert made["prompt_bytes"] == len(vocabulary.decode(tokens))
    sizes = made["prompt_bytes"], made["hit_bytes"], cached, engine_block
    row = Row("", made["turn"], entry["served_by"], made["reason"], *sizes)
    return row, answer["choices"][0]["message"]


async def test_predictions_against_cached_tokens(real: Real, capsys: pytest.CaptureFixture[str]) -> None:
    """At least 99 % of sequential requests are predicted within a prompt block plus an engine block; sessions stay."""
    vocabulary = Vocabulary.load(real.model)
    rows: list[Row] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http:
        histories: dict[str, Messages] = {}
        trace = sessions(10, 10, system=2_800, text=340, reply=24, seed=3)
        words = Words(trace, real.model)
        for request in sorted(trace.requests, key=lambda request: request.turn):
            asked = words.ask(request)
            history = carried_on(histories.get(request.session, []), asked)
            body = {"messages": history, "tools": asked.tools, "max_tokens": request.output, "temperature": 0}
            row, message = await one(real, http, vocabulary, body)
            rows.append(row._replace(session=request.session))
            if request.turn % 3 == 1:  # an agent's call, as the model's own would stand in the history
                call = {"name": asked.tools[0]["function"]["name"], "arguments": '{"path": "a.py", "line": 3}'}
                message["tool_calls"] = [{"id": f"c{request.turn}", "type": "function", "function": call}]
            kept = {key: message.get(key) for key in ("role", "content", "tool_calls") if message.get(key)}
            histories[request.session] = [*history, kept]

    within = [abs(row.error) <= PROMPT_BLOCK + row.engine_block for row in rows]
    homes = {row.session: row.engine for row in rows if row.turn == 0}
    followed = [row.engine == homes[row.session] for row in rows if row.turn]
    with capsys.disabled():
        print(table(rows, within, followed))
    assert sum(within) / len(rows) >= 0.99
    assert sum(followed) / len(followed) >= 0.95


async def test_concurrent_sessions_lose_nothing(real: Real) -> None:
    """Sessions side by side on real engines: every request is answered, and both engines take part."""
    trace = sessions(8, 3, system=1_400, text=230, reply=16, seed=11)
    words = Words(trace, real.model)
    served: Counter[str] = Counter()

    async def run(http: aiohttp.ClientSession, requests: Iterable[TraceRequest]) -> None:
        history: Messages = []
        for request in requests:
            asked = words.ask(request)
            history = carried_on(history, asked)
            body = {"messages": history, "tools": asked.tools, "max_tokens": request.output, "temperature": 0}
            path, answer = await exchange(real, http, body)
            served[(await real.decision(path))["served_by"]] += 1
            said = answer["choices"][0]["message"]["content"] or ""
            history = [*history, {"role": "assistant", "content": said}]

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as http, asyncio.TaskGroup() as group:
        for _, requests in groupby(sorted(trace.requests, key=_session), key=_session):
            group.create_task(run(http, list(requests)))
    assert served.total() == 24
    assert len(served) == 2


def _session(request: TraceRequest) -> str:
    return request.session


def table(rows: list[Row], within: list[bool], followed: list[bool]) -> str:
    """What goes into docs/vllm.md."""
    lines = ["", "| turn | requests | mean prompt bytes | mean hit predicted | mean hit of vLLM | largest error |"]
    lines.append("|---|---|---|---|---|---|")
    for turn in sorted({row.turn for row in rows}):
        some = [row for row in rows if row.turn == turn]
        means = [sum(getattr(row, name) for row in some) // len(some) for name in ("prompt", "predicted", "cached")]
        largest = max((row.error for row in some), key=abs)
        lines.append(f"| {turn} | {len(some)} | {means[0]:,} | {means[1]:,} | {means[2]:,} | {largest:+,} |")
    over = sum(row.error > 0 for row in rows)
    lines += ["", f"{sum(within)} of {len(rows)} sequential requests within one prompt block plus one engine block; "]
    lines[-1] += f"{over} over, {sum(followed)} of {len(followed)} follow-ups on their session's instance."
    return "\n".join(lines)
