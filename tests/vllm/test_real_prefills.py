"""Against a real vLLM: a prefill is taken for ended when the first token comes. Run by `make test-vllm`.

One engine on the CPU, and the product's own follower, index and router in this process, so that both moments are read
from one clock. With `SMETRIC_VLLM_AT=HTTP,EVENTS,REPLAY,MODEL_DIR` an engine that runs already is taken.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

import aiohttp
import pytest

from extproc.base.facts import Fact
from extproc.base.model import Instance, Knowledge
from extproc.index.memory import MemoryIndex
from extproc.kv_events.follower import Follower
from extproc.prompts.renderer import Renderer
from extproc.prompts.tokenizer.vocabulary import Vocabulary
from extproc.routing.pools.loads import Loads, Ticket
from extproc.routing.pools.pool import Pool
from extproc.routing.query import Ask
from extproc.routing.route_settings import RouteSettings
from extproc.routing.router import Router
from tests.support.following import until
from tests.vllm.test_real_vllm import HOST, Real, pytestmark

__all__ = ["pytestmark"]

POOL = "engines"
PATH = "/v1/completions"
BLOCK = 256  # bytes


class Engine(NamedTuple):
    """Where a real engine is reached."""

    port: int
    events: int
    replay: int
    model: Path


class Seen(NamedTuple):
    """One request: seconds since it was sent."""

    tokens: int
    ended: float  # when its prefill was taken for ended
    first: float  # when its first token came
    step: float  # the longest step of the engine meanwhile


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    if at := os.environ.get("SMETRIC_VLLM_AT"):
        port, events, replay, model = at.split(",")
        yield Engine(int(port), int(events), int(replay), Path(model))
        return
    with ExitStack() as stack:
        real = Real(tmp_path_factory.mktemp("prefills"))
        real.start_engine(stack)
        port, events, replay, _ = real.engines[0]
        yield Engine(port, events, replay, real.model)


class Gateway:
    """The parts of the product between an engine's events and its load."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.index = MemoryIndex()
        self.loads = Loads()
        self.router = Router(self.index, self.loads)
        address = f"{HOST}:{engine.port}"
        instance = Instance(
            address, kv_events=f"tcp://{HOST}:{engine.events}", kv_replay=f"tcp://{HOST}:{engine.replay}"
        )
        self.pool = Pool(POOL, Renderer.load(engine.model), block_bytes=BLOCK, instances=[instance])
        self.words = Vocabulary.load(engine.model)
        self.steps: list[float] = []  # when the engine spoke
        self.ended: dict[Ticket, float] = {}
        self.open: list[Ticket] = []

    def hear(self, _pool: str, fact: Fact) -> None:
        """As the product does it; notes when each prefill ends."""
        now = time.monotonic()
        self.steps.append(now)
        self.pool.hear(fact, now)
        for ticket in self.open:
            if not ticket._load.unprefilled:
                self.ended.setdefault(ticket, now)

    async def ask(self, http: aiohttp.ClientSession, prompt: str) -> Seen:
        """Send a prompt that nothing of is cached."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "stream": True, "ignore_eos": True}
        body["stream_options"] = {"include_usage": True}
        data, sent = json.dumps(body).encode(), time.monotonic()
        routed = await self.router.pick(self.pool, RouteSettings(POOL), Ask(PATH, data), now=sent)
        ticket = routed.ticket
        assert isinstance(ticket, Ticket)
        self.open.append(ticket)
        first, tokens = 0.0, 0
        headers = {"content-type": "application/json"}
        async with http.post(f"http://{HOST}:{self.engine.port}{PATH}", data=data, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            ticket.answered()
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    first = first or time.monotonic()
                    usage = json.loads(line[6:]).get("usage")
                    tokens = usage["prompt_tokens"] if usage else tokens
        await until(lambda: ticket in self.ended)
        self.open.remove(ticket)
        ticket.release()
        moments = [sent, *(moment for moment in self.steps if sent < moment < first), first]
        step = max(after - before for before, after in itertools.pairwise(moments))
        return Seen(tokens, self.ended.pop(ticket) - sent, first - sent, step)


@pytest.fixture
async def gateway(engine: Engine) -> AsyncIterator[Gateway]:
    gateway = Gateway(engine)
    follower = Follower(POOL, gateway.words, BLOCK, gateway.index, tell=gateway.hear)
    follower.follow(gateway.pool.instances)
    name = gateway.pool.instances[0].name
    await until(lambda: follower.reports()[name].state is Knowledge.EXACT)
    yield gateway
    await follower.close()


def prompts(engine: Engine, count: int, seed: int) -> list[str]:
    """Prompts of about 1,000 to 15,000 tokens, each of its own words, each a token."""
    known = json.loads((engine.model / "tokenizer.json").read_text())["model"]["vocab"]
    words = sorted(word[1:] for word in known if word.startswith("Ġ") and word[1:].isascii() and word[1:].isalpha())
    draw = random.Random(seed)
    return [" ".join(draw.choices(words, k=draw.randint(1_000, 15_000))) for _ in range(count)]


COUNT = int(os.environ.get("SMETRIC_VLLM_PREFILLS", "50"))  # of each kind


@pytest.mark.parametrize("at_once", [1, 4])
async def test_a_prefill_ends_with_the_first_token(gateway: Gateway, at_once: int) -> None:
    """Alone and four at a time: within two steps of the engine of the first token, for prompts of 1k to 15k tokens."""
    waiting = prompts(gateway.engine, COUNT, at_once)
    seen: list[Seen] = []

    async def client(http: aiohttp.ClientSession) -> None:
        while waiting:
            seen.append(await gateway.ask(http, waiting.pop()))

    async with aiohttp.ClientSession() as http:
        await asyncio.gather(*(client(http) for _ in range(at_once)))
    early = sorted(one.first - one.ended for one in seen)
    steps = sorted((one.first - one.ended) / one.step for one in seen)
    print(
        f"\n{at_once} at a time, {len(seen)} prompts of {min(one.tokens for one in seen)} to "
        f"{max(one.tokens for one in seen)} tokens: ended {1000 * early[0]:.1f} to {1000 * early[-1]:.1f} ms "
        f"(median {1000 * median(early):.1f}) before the first token, {steps[0]:.2f} to {steps[-1]:.2f} steps; "
        f"pace {gateway.pool.prefills.pace}"
    )
    assert all(-2 <= number <= 2 for number in steps)
    assert gateway.loads.snapshot(POOL) == {}
    assert len(gateway.pool.prefills) == 0
