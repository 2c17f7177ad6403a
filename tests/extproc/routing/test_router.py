"""The router from a body to a choice, with the embedded index; what it cannot read it still routes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from extproc.base import blocks
from extproc.base.errors import IndexUnavailable, NoInstance, RenderError
from extproc.base.facts import Fact
from extproc.base.model import Instance, Prompt, Reason, Request
from extproc.index import Change
from extproc.index.memory import MemoryIndex
from extproc.prompts.renderer import PlainRenderer
from extproc.routing.pools.loads import Loads
from extproc.routing.pools.pool import Pool
from extproc.routing.pools.ties import Kind
from extproc.routing.query import Ask, read
from extproc.routing.route_settings import RouteSettings
from extproc.routing.router import Decision, Router

CHAT = "/v1/chat/completions"
SYSTEM = {"role": "system", "content": "You are careful. " * 200}


def chat(*messages: Mapping[str, Any], **fields: Any) -> bytes:
    return json.dumps({"model": "tiny", "messages": [SYSTEM, *messages], **fields}).encode()


def says(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


FIRST = chat(says("user", "fix it"))
FOLLOW_UP = chat(says("user", "fix it"), says("assistant", "I did. " * 100), says("user", "thanks"))


class Setup:
    """A pool of four instances, and a router to ask."""

    def __init__(self, count: int = 4) -> None:
        self.index = MemoryIndex()
        self.loads = Loads()
        self.router = Router(self.index, self.loads)
        self.pool = Pool("pool", PlainRenderer(), instances=[Instance(f"10.0.0.{i}:8000") for i in range(count)])

    async def pick(self, body: bytes | None, *, path: str = CHAT, now: float = 0.0, **options: float) -> Decision:
        return await self.router.pick(self.pool, RouteSettings("pool", options=options), Ask(path, body), now=now)

    def chain(self, body: bytes) -> Sequence[int]:
        return read(self.pool, self.router.adapters(self.pool.name), Ask(CHAT, body)).chain

    async def cache(self, instance: int, body: bytes) -> None:
        name = self.pool.instances[instance].name
        await self.index.apply([Change("pool", name, add=self.chain(body))])


async def test_a_session_is_balanced_and_then_kept() -> None:
    """The first turn goes round; the follow-up goes where its history is cached, and knows all its figures."""
    setup = Setup()
    first = await setup.pick(FIRST)
    assert (first.choice.instance.address, first.choice.reason) == ("10.0.0.0:8000", Reason.FIRST_TURN)
    first.ticket.release()
    await setup.cache(2, FOLLOW_UP)
    choice = (await setup.pick(FOLLOW_UP, now=100.0)).choice
    assert (choice.instance.address, choice.reason, choice.turn) == ("10.0.0.2:8000", Reason.STICK, 1)
    assert 0 < choice.history < choice.prompt
    assert choice.hit == choice.best_hit == len(setup.chain(FOLLOW_UP)) * blocks.DEFAULT_SIZE
    assert [instance.address for instance in choice.fallbacks] == ["10.0.0.3:8000", "10.0.0.0:8000"]
    assert (choice.load, choice.mean_load) == (0, 0)


async def test_every_choice_holds_load_until_released() -> None:
    """A burst of first turns spreads one by one, because each decision sees the one before."""
    setup = Setup()
    picked = [await setup.pick(FIRST) for _ in range(8)]
    assert [routed.choice.instance.address[7] for routed in picked] == list("01230123")
    assert {load[:2] for load in setup.loads.snapshot("pool").values()} == {(2, 2 * picked[0].choice.prompt)}
    for routed in picked:
        routed.ticket.release()
    assert setup.loads.snapshot("pool") == {}


async def test_a_burst_of_follow_ups_does_not_scatter() -> None:
    """A prompt that was just sent counts as cached before the engine says so, for a short while."""
    setup = Setup()
    await setup.cache(1, FOLLOW_UP)
    longer = chat(says("user", "fix it"), says("assistant", "I did. " * 100), says("user", "go on " * 400))
    first = await setup.pick(longer, now=0.0)
    assert first.choice.instance.address == "10.0.0.1:8000"
    second = await setup.pick(longer, now=1.0)
    assert second.choice.hit == len(setup.chain(longer)) * blocks.DEFAULT_SIZE
    first.ticket.release()
    second.ticket.release()
    later = await setup.pick(longer, now=60.0)
    assert later.choice.hit == len(setup.chain(FOLLOW_UP)) * blocks.DEFAULT_SIZE


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        (CHAT, b"{", Reason.UNREADABLE_BODY),
        (CHAT, b"\xff\xfe", Reason.UNREADABLE_BODY),
        (CHAT, b"[" * 10_000 + b"]" * 10_000, Reason.UNREADABLE_BODY),
        ("/v1/embeddings", b'{"input": "x"}', Reason.UNSUPPORTED_API),
        (CHAT, None, Reason.NO_BODY),
    ],
)
async def test_what_cannot_be_read_is_routed_by_load(path: str, body: bytes | None, reason: Reason) -> None:
    """The engine judges the request; the least loaded one gets it, and the reason says why."""
    setup = Setup()
    held = [await setup.pick(FIRST) for _ in range(3)]
    ask = Ask(path, body, Reason.NO_BODY)
    routed = await setup.router.pick(setup.pool, RouteSettings("pool"), ask, now=0.0)
    assert (routed.choice.instance.address, routed.choice.reason) == ("10.0.0.3:8000", reason)
    assert len(held) == 3


class Refusing:
    """A template that raises."""

    def render(self, request: Request) -> Prompt:
        raise RenderError("no")


class Broken:
    """A renderer with a bug."""

    def render(self, request: Request) -> Prompt:
        raise ZeroDivisionError


@pytest.mark.parametrize(("renderer", "reason"), [(Refusing(), "render_failed"), (Broken(), "internal_error")])
async def test_a_template_that_fails_costs_the_cache_not_the_request(renderer: Any, reason: str) -> None:
    """The turn is still known; the decision is by load."""
    setup = Setup()
    setup.pool.renderer = renderer
    choice = (await setup.pick(FOLLOW_UP)).choice
    assert (choice.reason.value, choice.turn, choice.prompt) == (reason, 1, 0)


class Down(MemoryIndex):
    """An index that never answers in time."""

    async def match(self, pool: str, chain: Sequence[int]) -> Mapping[str, int]:
        raise IndexUnavailable("down")


async def test_without_the_index_load_decides() -> None:
    """The turn and the lengths are reported; the reason is the index."""
    setup = Setup()
    setup.router = Router(Down(), setup.loads)
    choice = (await setup.pick(FOLLOW_UP)).choice
    assert (choice.reason, choice.turn, choice.hit) == (Reason.INDEX_UNAVAILABLE, 1, 0)
    assert choice.prompt > choice.history > 0


async def test_a_policy_with_a_bug_costs_its_choice_not_the_request() -> None:
    """An option that the policy does not have is a bug of ours at this depth, and load decides."""
    choice = (await Setup().pick(FOLLOW_UP, no_such_option=1.0)).choice
    assert choice.reason is Reason.INTERNAL_ERROR


async def test_an_empty_pool_is_the_only_error() -> None:
    """Nobody could serve it."""
    with pytest.raises(NoInstance, match="pool 'pool'"):
        await Setup(0).pick(FIRST)


async def test_a_salt_has_a_cache_of_its_own() -> None:
    """It separates the chain, as an adapter does (test_lora.py)."""
    setup = Setup()
    assert setup.chain(chat(says("user", "fix it"), cache_salt="tenant")) != setup.chain(FIRST)


async def test_sessions_that_several_hold_do_not_gather_on_one() -> None:
    """Where instances hold a prompt equally long and are equally idle, follow-ups take turns among them."""
    setup = Setup()
    for instance in (1, 2):
        await setup.cache(instance, FOLLOW_UP)
    served = []
    for _ in range(4):
        routed = await setup.pick(FOLLOW_UP, now=0.0)
        routed.ticket.release()
        served.append(routed.choice.instance.address)
    assert served == ["10.0.0.1:8000", "10.0.0.2:8000"] * 2


async def test_ranks_share_a_host_and_have_caches_of_their_own() -> None:
    """Data-parallel ranks are chosen one by one; a fallback is always another host."""
    setup = Setup(0)
    setup.pool.instances = [Instance(f"10.0.0.{host}:8000", rank) for host in (1, 2) for rank in (0, 1)]
    await setup.index.apply([Change("pool", "10.0.0.2:8000/1", add=setup.chain(FOLLOW_UP))])
    choice = (await setup.pick(FOLLOW_UP)).choice
    assert choice.instance.name == "10.0.0.2:8000/1"
    assert {instance.address for instance in choice.fallbacks} == {"10.0.0.1:8000"}


class Suspended(MemoryIndex):
    """An index whose answers are on their way for as long as a test likes, or that does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.arrive = asyncio.Event()
        self.away = False

    async def match(self, pool: str, chain: Sequence[int]) -> Mapping[str, int]:
        if self.away:
            raise IndexUnavailable("away")
        found = await super().match(pool, chain)
        await self.arrive.wait()
        return found


def suspended() -> tuple[Setup, Suspended, str]:
    setup, index = Setup(1), Suspended()
    setup.index, setup.router = index, Router(index, setup.loads)
    index.arrive.set()
    return setup, index, setup.pool.instances[0].name


async def test_an_engine_may_speak_while_the_index_answers() -> None:
    """What it stored is not yet in that answer, and no guess any more: it counts nevertheless."""
    setup, index, name = suspended()
    chain = (await setup.pick(FIRST)).chain
    index.arrive.clear()
    asked = asyncio.create_task(setup.pick(FOLLOW_UP, now=1.0))
    await asyncio.sleep(0)
    await index.apply([Change("pool", name, add=chain)])
    setup.pool.speculation.hear(Fact(name, stored=chain[-1:]), 1.1)
    index.arrive.set()
    assert (await asked).choice.reason is Reason.STICK
    await index.apply([Change("pool", name, remove=list(reversed(chain)))])
    assert (await setup.pick(FOLLOW_UP, now=1.2)).choice.reason is Reason.EVICTED, "whoever asks later was told"


async def test_nothing_is_guessed_where_the_index_could_not_be_asked() -> None:
    """The engine may have had the prompt all the time: then it never says that it stored it, only that it is gone."""
    setup, index, _ = suspended()
    index.away = True
    assert (await setup.pick(FIRST)).choice.reason is Reason.INDEX_UNAVAILABLE
    index.away = False
    assert (await setup.pick(FOLLOW_UP, now=1.0)).choice.hit == 0


async def test_what_is_no_first_turn_moves_no_first_turns_place() -> None:
    """A list of models, a count of tokens, a follow-up: the account of first turns is as it was, and only a first turn
    adds to it."""
    setup = Setup()
    names = [instance.name for instance in setup.pool.instances]

    def account() -> Sequence[float]:
        return list(setup.pool.ties.shares(Kind.FIRST, names))

    (await setup.pick(FIRST)).ticket.release()
    before = account()
    assert sum(before) > 0
    others = (None, "/v1/models"), (FIRST, "/v1/messages/count_tokens"), (FOLLOW_UP, CHAT), (b"{", CHAT)
    for body, path in others:
        (await setup.pick(body, path=path)).ticket.release()
        assert account() == before
    (await setup.pick(FIRST)).ticket.release()
    assert sum(account()) > sum(before)
