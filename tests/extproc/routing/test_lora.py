"""LoRA adapters: what a name means, and where. Through the router, because that is what must be right."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from extproc.base import blocks
from extproc.base.model import Instance
from extproc.index import MAX_ADAPTERS, Change
from extproc.index.memory import MemoryIndex
from extproc.prompts.renderer import PlainRenderer
from extproc.requests import apis
from extproc.routing import lora
from extproc.routing.pools.admission import Subset
from extproc.routing.pools.loads import Loads
from extproc.routing.pools.pool import Pool
from extproc.routing.query import Ask, pool_for
from extproc.routing.route_settings import RouteSettings
from extproc.routing.router import Decision, Router

CHAT = "/v1/chat/completions"
A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"


def follow_up(model: str | None) -> bytes:
    says = [("system", "You are careful. " * 200), ("user", "fix it"), ("assistant", "I did. " * 200), ("user", "more")]
    return json.dumps({"model": model, "messages": [{"role": role, "content": text} for role, text in says]}).encode()


class Rig:
    """Three instances whose caches are told to an index, and a router that asks it."""

    def __init__(self, models: Sequence[str] = (), instances: Sequence[Instance] | None = None) -> None:
        self.index = MemoryIndex()
        self.router = Router(self.index, Loads())
        instances = instances or [Instance(address) for address in (A, B, C)]
        self.pool = Pool("pool", PlainRenderer(), models=frozenset(models), instances=instances)

    async def caches(self, instance: str, *, adapter: str | None = None) -> None:
        """An engine has computed the follow-up's prompt, and says so."""
        prompt = PlainRenderer().render(apis.parse(CHAT, follow_up(adapter))).data
        chain = blocks.extend(prompt, blocks.root("pool", adapter), self.pool.block_bytes)
        await self.index.apply([Change("pool", instance, add=chain, adapters=[adapter] if adapter else None)])

    async def announces(self, instance: str, *names: str) -> None:
        await self.index.apply([Change("pool", instance, adapters=names)])

    async def pick(self, model: str | None, subset: Subset | None = None) -> Decision:
        ask = Ask(CHAT, follow_up(model), subset=subset)
        return await self.router.pick(self.pool, RouteSettings("pool"), ask, now=100.0)

    async def hits(self, model: str | None) -> set[str]:
        """Which instances are believed to hold the prompt."""
        return set((await self.pick(model)).held)


async def test_a_name_that_models_rules_out_is_an_adapter_before_anybody_says_so() -> None:
    """What the base model has cached is no hit for it, nor the other way round."""
    rig = Rig(models=["base", "alias"])
    await rig.caches(A)
    assert await rig.hits("base") == await rig.hits("alias") == await rig.hits(None) == {A}
    assert await rig.hits("fresh") == set()
    await rig.caches(B, adapter="fresh")
    assert await rig.hits("fresh") == {B}
    assert await rig.hits("base") == {A}


async def test_a_name_of_the_base_model_is_no_adapters() -> None:
    """An engine that announces one changes nothing, and an operator can be told."""
    rig = Rig(models=["base"])
    await rig.caches(A)
    await rig.announces(C, "base", "other")
    assert await rig.hits("base") == {A}
    assert lora.refused(rig.pool, rig.index.adapters("pool")) == {"base": {C}}


async def test_one_engines_announcement_says_nothing_of_the_others() -> None:
    """Without `models` a name means on each instance what that instance announced. One that misnames an adapter, or
    serves another base model than the rest, loses its own hits and nobody else's."""
    rig = Rig()
    for instance in (A, B, C):
        await rig.caches(instance)
    await rig.announces(C, "base")
    assert await rig.hits("base") == {A, B}
    assert await rig.hits("another name") == {A, B, C}


async def test_a_rollout_from_a_merged_model_to_an_adapter() -> None:
    """The same name is a base model's here and an adapter's there; both count, each where it is true."""
    rig = Rig()
    await rig.caches(A)  # serves "tuned" as its base model
    await rig.caches(B)  # serves another base model, which has the same prompt cached ...
    await rig.caches(B, adapter="tuned")  # ... and "tuned" as an adapter
    await rig.caches(C)
    await rig.announces(C, "tuned")  # the adapter is loaded there, and has nothing cached
    assert await rig.hits("tuned") == {A, B}
    assert await rig.hits("base") == {A, B, C}


async def test_where_all_instances_have_the_adapter_its_chain_alone_is_asked_for() -> None:
    """One look-up, as for a base model."""
    rig = Rig()
    for instance in (A, B):
        await rig.caches(instance, adapter="ad")
    assert (await rig.pick("ad")).query.base_chain
    await rig.announces(C, "ad")
    assert not (await rig.pick("ad")).query.base_chain
    assert await rig.hits("ad") == {A, B}


async def test_a_thousand_names_of_one_engine_leave_the_others_theirs() -> None:
    """Each instance has a list of its own."""
    rig = Rig()
    await rig.caches(A, adapter="ad")
    await rig.announces(C, *(f"flood-{number}" for number in range(2 * MAX_ADAPTERS)))
    assert await rig.hits("ad") == {A}


async def test_ranks_of_one_server_have_the_same_adapters() -> None:
    """Whichever of them computed for it first: on the other the base model's prompt is no hit either."""
    ranks = [Instance(A, rank) for rank in range(2)]
    rig = Rig(instances=[*ranks, Instance(B)])
    await rig.caches(ranks[0].name, adapter="ad")
    await rig.caches(ranks[1].name)
    await rig.caches(B)
    assert await rig.hits("ad") == {ranks[0].name, B}


async def test_a_burst_of_follow_ups_stays_where_the_first_went() -> None:
    """A hint is kept under the keys that the prompt has on the chosen instance, whichever they are."""
    for chosen in (A, B):
        rig = Rig()
        await rig.announces(A, "ad")
        first = await rig.pick("ad", Subset([chosen]))
        assert first.query.chain_on(A) != first.query.chain_on(B)
        again = (await rig.pick("ad")).choice
        assert (again.instance.name, again.hit > 0) == (chosen, True)


@pytest.mark.parametrize("announced", [[(1, 0), (2, 2)], [(1, 1), (2, 2)]])
async def test_among_pools_most_engines_have_the_word(announced: list[tuple[int, int]]) -> None:
    """A pool that names the model comes first; else the one with the most engines that announced it as an adapter."""
    index = MemoryIndex()
    pools = [
        Pool("first", PlainRenderer(), frozenset({"base"})),
        Pool("1", PlainRenderer()),
        Pool("2", PlainRenderer()),
    ]
    for pool, engines in announced:
        await index.apply([Change(str(pool), f"i{number}", adapters=["ad", "base"]) for number in range(engines)])
    assert pool_for(pools, index.adapters, follow_up("ad")) is pools[2]
    assert pool_for(pools, index.adapters, follow_up("base")) is pools[0]
    assert pool_for(pools, index.adapters, follow_up("nobody's")) is pools[0]
