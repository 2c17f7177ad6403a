"""The router over a disaggregated pool: who prefills, who decodes, whose load is what, and what is left whole."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from extproc.base.errors import Shed
from extproc.base.model import Instance, Reason, Role
from extproc.index import Change
from extproc.index.memory import MemoryIndex
from extproc.prompts.renderer import PlainRenderer
from extproc.routing.pools.loads import Loads, PairTicket
from extproc.routing.pools.pool import Pool
from extproc.routing.query import Ask, read
from extproc.routing.route_settings import RouteSettings
from extproc.routing.router import Decision, Router

CHAT = "/v1/chat/completions"
SYSTEM = {"role": "system", "content": "You are careful. " * 200}
P, D, B = Role.PREFILL, Role.DECODE, Role.BOTH


def says(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


FIRST = [SYSTEM, says("user", "fix it")]
FOLLOW_UP = [*FIRST, says("assistant", "I did. " * 100), says("user", "thanks")]


class Setup:
    """A pool with instances 0, 1, ... of the given roles, and a router to ask."""

    def __init__(self, *roles: Role) -> None:
        self.index = MemoryIndex()
        self.loads = Loads()
        self.router = Router(self.index, self.loads)
        instances = [Instance(f"10.0.0.{number}:8000", role=role) for number, role in enumerate(roles)]
        self.pool = Pool("pool", PlainRenderer(), instances=instances)
        self.route = RouteSettings("pool")

    def ask(self, messages: list[dict[str, str]], **fields: Any) -> Ask:
        return Ask(CHAT, json.dumps({"messages": messages, **fields}).encode())

    async def pick(
        self, messages: list[dict[str, str]], now: float = 0.0, **fields: Any
    ) -> tuple[int | None, int, Decision]:
        """The numbers of the prefill and the decode instance, and everything else."""
        routed = await self.router.pick(self.pool, self.route, self.ask(messages, **fields), now=now)
        return *self.numbers(routed), routed

    def numbers(self, routed: Decision) -> tuple[int | None, int]:
        choice, instances = routed.choice, list(self.pool.instances)
        return None if choice.prefill is None else instances.index(choice.prefill), instances.index(choice.instance)

    async def cache(self, number: int, messages: list[dict[str, str]]) -> None:
        chain = read(self.pool, self.router.adapters(self.pool.name), self.ask(messages)).chain
        await self.index.apply([Change("pool", self.pool.instances[number].name, add=chain)])


def counted(setup: Setup) -> dict[str, tuple[int, int]]:
    """Requests in flight and bytes to prefill, by instance."""
    return {name: load[:2] for name, load in setup.loads.snapshot("pool").items()}


async def test_each_side_is_chosen_from_its_own_roles() -> None:
    """First requests go round on both sides, and a decode instance never prefills for another."""
    setup = Setup(P, P, D, D)
    picked = [(await setup.pick(FIRST))[:2] for _ in range(4)]
    assert picked == [(0, 2), (1, 3), (0, 2), (1, 3)]


async def test_a_session_sticks_to_its_prefill_instance() -> None:
    """Only the caches of prefill instances count, and the figures are those of the one that prefills."""
    setup = Setup(P, P, D)
    await setup.cache(1, FOLLOW_UP)
    await setup.cache(2, FOLLOW_UP)
    prefill, decode, routed = await setup.pick(FOLLOW_UP)
    assert (prefill, decode, routed.choice.reason) == (1, 2, Reason.STICK)
    assert routed.choice.hit == routed.choice.best_hit > routed.choice.history / 2
    assert routed.choice.fallbacks == ()


async def test_the_load_of_the_prefill_side_is_unprefilled_bytes() -> None:
    """Many short prompts weigh less than a long one, and what was prefilled weighs nothing."""
    setup = Setup(P, P, D)
    _, _, long = await setup.pick([says("user", "long " * 10_000)])
    for _ in range(3):
        assert (await setup.pick([says("user", "short")]))[0] == 1
    assert isinstance(long.ticket, PairTicket)
    long.ticket.prefilled()
    prefill, _, routed = await setup.pick(FIRST)
    assert prefill == 0
    assert (routed.choice.load, routed.choice.mean_load > 0) == (0, True)


async def test_a_prompts_worth_of_waiting_prefill_is_no_overload() -> None:
    """The floor of the overload guard is in requests, whatever the unit of the loads."""
    setup = Setup(*[P] * 8, D)
    await setup.cache(3, FOLLOW_UP)
    name = setup.pool.instances[3].name
    prompt = read(setup.pool, {}, setup.ask(FOLLOW_UP)).prompt
    busy = setup.loads.start("pool", name, prompt)
    assert (await setup.pick(FOLLOW_UP, now=100.0))[2].choice.reason is Reason.STICK
    busy.release()
    setup.loads.start("pool", name, prompt + 10_000)
    assert (await setup.pick(FOLLOW_UP, now=200.0))[2].choice.reason is Reason.OVERLOADED


async def test_loads_of_both_sides_balance() -> None:
    """Each holds its own share, and all of it is given back."""
    setup = Setup(P, D)
    _, _, routed = await setup.pick(FIRST)
    prefill, decode = (instance.name for instance in setup.pool.instances)
    assert counted(setup) == {prefill: (1, routed.choice.prompt), decode: (1, 0)}
    assert isinstance(routed.ticket, PairTicket)
    routed.ticket.prefilled()
    assert counted(setup) == {decode: (1, 0)}
    routed.ticket.release()
    assert setup.loads.snapshot("pool") == {}


async def test_the_decode_instance_is_the_one_with_the_fewest_requests() -> None:
    """Whatever waits for prefill; its fallbacks decode too."""
    setup = Setup(P, D, D, D)
    setup.loads.start("pool", setup.pool.instances[1].name, 0)
    setup.loads.start("pool", setup.pool.instances[2].name, 100_000)
    setup.loads.start("pool", setup.pool.instances[2].name, 0)
    _, decode, routed = await setup.pick(FIRST)
    assert decode == 3
    assert routed.choice.fallbacks == (setup.pool.instances[1], setup.pool.instances[2])


async def test_an_instance_that_does_both_need_not_send_to_itself() -> None:
    """Where both choices fall on one instance, it serves the request as any other."""
    setup = Setup(B, D)
    setup.loads.start("pool", setup.pool.instances[1].name, 0)
    prefill, decode, routed = await setup.pick(FIRST)
    assert (prefill, decode) == (None, 0)
    assert counted(setup)[setup.pool.instances[0].name] == (1, routed.choice.prompt)


@pytest.mark.parametrize("fields", [{"n": 2}, {"use_beam_search": True}])
async def test_what_cannot_be_halved_goes_to_a_decode_instance(fields: dict[str, Any]) -> None:
    """By requests in flight, as in any pool."""
    setup = Setup(P, D, D)
    setup.loads.start("pool", setup.pool.instances[1].name, 0)
    assert (await setup.pick(FIRST, **fields))[:2] == (None, 2)
    assert setup.numbers(await setup.router.pick(setup.pool, setup.route, Ask("/tokenize", b"{}"), now=0.0))[0] is None


@pytest.mark.parametrize(("roles", "expected"), [((P, P), 0), ((D, D), 0)])
async def test_one_side_alone_serves_whole_requests(roles: tuple[Role, ...], expected: int) -> None:
    """A pool that lost a side still serves."""
    assert (await Setup(*roles).pick(FIRST))[:2] == (None, expected)


async def test_a_failed_prefill_moves_and_then_ends_on_the_decode_side() -> None:
    """The next instance by the policy is asked once; after that the decode instance computes, and the reason tells."""
    setup = Setup(P, P, P, D)
    await setup.cache(1, FOLLOW_UP)
    _, _, first = await setup.pick(FOLLOW_UP)
    assert setup.numbers(first) == (1, 3)
    ask = setup.ask(FOLLOW_UP)
    second = setup.router.again(setup.pool, setup.route, ask, first, now=0.0)
    assert setup.numbers(second)[0] in (0, 2)
    third = setup.router.again(setup.pool, setup.route, ask, second, now=0.0)
    assert setup.numbers(third) == (None, 3)
    assert third.choice.reason is Reason.PREFILL_FAILED
    assert counted(setup) == {setup.pool.instances[3].name: (1, third.choice.prompt)}


async def test_the_only_prefill_instance_fails() -> None:
    """There is no other to ask."""
    setup = Setup(P, D)
    _, _, first = await setup.pick(FIRST)
    second = setup.router.again(setup.pool, setup.route, setup.ask(FIRST), first, now=0.0)
    assert (*setup.numbers(second), second.choice.reason) == (None, 1, Reason.PREFILL_FAILED)


async def test_either_side_can_be_at_its_limit() -> None:
    """A request is shed where nobody may prefill it, or nobody may decode it; nothing is counted for it."""
    for busy in (0, 1):
        setup = Setup(P, D)
        setup.route = replace(setup.route, max_load=1)
        setup.loads.start("pool", setup.pool.instances[busy].name, 0)
        before = setup.loads.snapshot("pool")
        with pytest.raises(Shed):
            await setup.pick(FIRST)
        assert setup.loads.snapshot("pool") == before
