"""explain.py: a decision made for show tells everything, changes nothing, and shows no text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from extproc.admin.explain import Explainer
from extproc.base.errors import ConfigError
from extproc.base.model import Instance
from extproc.index import Change
from extproc.index.memory import MemoryIndex
from extproc.prompts.renderer import PlainRenderer
from extproc.routing.pools.loads import Loads
from extproc.routing.pools.pool import Pool
from extproc.routing.query import Ask, read
from extproc.routing.route_settings import RouteSettings
from extproc.routing.router import Router

SECRET = "the launch code is 0000"  # stands for whatever people write to a model
ROUTE = RouteSettings("pool", "smetric", {"overload": 2.0, "overload_floor": 1.0, "hit_ratio": 0.5})


def body(*turns: str, **more: Any) -> bytes:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": f"{SECRET} {text} " * 50} for i, text in enumerate(turns)]
    return json.dumps({"model": "tiny", "messages": messages, **more}).encode()


FIRST, FOLLOW_UP = body("a"), body("a", "b", "c")


class Setup:
    """A router over three instances, of which the second holds the follow-up."""

    def __init__(self) -> None:
        self.index, self.loads = MemoryIndex(), Loads()
        self.pool = Pool("pool", PlainRenderer(), instances=[Instance(f"10.0.0.{i}:8000") for i in range(3)])
        self.router = Router(self.index, self.loads)
        self.explainer = Explainer(self.router, self.loads, {"pool": self.pool}, ROUTE)

    async def cache(self, instance: int, sent: bytes) -> None:
        chain = read(self.pool, self.router.adapters(self.pool.name), Ask("/v1/chat/completions", sent)).chain
        await self.index.apply([Change("pool", self.pool.instances[instance].name, add=chain)])

    async def explain(self, sent: bytes, **about: str) -> Mapping[str, Any]:
        return (await self.explainer.answer(about, sent, now=0.0)).json()


async def test_a_sticky_decision_is_explained() -> None:
    """Turn, lengths, hits and loads of each instance, both guards with their numbers, and the choice."""
    setup = Setup()
    await setup.cache(1, FOLLOW_UP)
    told = await setup.explain(FOLLOW_UP)
    assert (told["path"], told["model"], told["pool"], told["policy"]) == (
        "/v1/chat/completions",
        "tiny",
        "pool",
        "smetric",
    )
    assert (told["turn"], told["choice"], told["reason"]) == (1, "10.0.0.1:8000", "stick")
    assert 0 < told["history_bytes"] < told["prompt_bytes"]
    assert [row["hit_bytes"] for row in told["instances"].values()] == [0, told["prompt_blocks"] * 256, 0]
    overloaded, evicted = told["guards"]
    assert (overloaded["reason"], overloaded["passes"]) == ("overloaded", True)
    assert overloaded["arithmetic"] == "load 0 <= max(overload 2 * mean load 0, floor 1) = 1"
    history = told["history_bytes"]
    hit = told["prompt_blocks"] * 256
    assert evicted["arithmetic"] == f"hit {hit} > hit_ratio 0.5 * history {history} = {history / 2:g}"


async def test_a_guard_that_objects_says_so() -> None:
    """Overloaded and evicted instances, by the arithmetic that decided."""
    setup = Setup()
    await setup.cache(1, FOLLOW_UP)
    held = [setup.loads.start("pool", "10.0.0.1:8000", 10) for _ in range(5)]
    told = await setup.explain(FOLLOW_UP)
    assert (told["reason"], told["guards"][0]["passes"]) == ("overloaded", False)
    assert told["instances"]["10.0.0.1:8000"]["in_flight"] == len(held)
    assert told["instances"]["10.0.0.1:8000"]["unprefilled_bytes"] == 50
    assert (await Setup().explain(FOLLOW_UP))["reason"] == "evicted"


async def test_nothing_changes() -> None:
    """However often one asks: no load, no turn of the round robin, nothing taken for cached."""
    setup = Setup()
    for sent in (FIRST, FOLLOW_UP, b"{", body("x", model="other")):
        for _ in range(5):
            first = await setup.explain(sent)
            assert await setup.explain(sent) == first
    assert setup.loads.snapshot("pool") == {}
    assert setup.pool.cursor == 0
    assert len(setup.pool.speculation) == 0


async def test_no_text_is_shown() -> None:
    """Neither for a request that is read nor for one that is not."""
    setup = Setup()
    broken = FIRST[:-10]
    wrong = json.dumps({"messages": [{"role": SECRET, "content": 5}], "tools": SECRET}).encode()
    for sent in (FIRST, FOLLOW_UP, broken, wrong):
        explanation = await setup.explainer.answer({}, sent, now=0.0)
        assert "launch code" not in json.dumps(explanation.json()) + explanation.text()


@pytest.mark.parametrize(
    ("sent", "about", "reason"),
    [
        (b"{", {}, "unreadable_body"),
        (b"", {}, "no_body"),
        (FIRST, {"path": "/v1/embeddings"}, "unsupported_api"),
        (FIRST, {"path": "/v1/messages/count_tokens"}, "no_prefill"),
        (b'{"input": "x", "previous_response_id": "resp_1"}', {"path": "/v1/responses"}, "unknown_response"),
        (FOLLOW_UP, {"x-smetric-turn": "0"}, "first_turn"),
        (FOLLOW_UP, {"x-smetric-policy": "least-loaded"}, "scored"),
    ],
)
async def test_every_kind_of_decision(sent: bytes, about: Mapping[str, str], reason: str) -> None:
    """Path, turn and the route's own settings are as one tells them."""
    assert (await Setup().explain(sent, **about))["reason"] == reason


async def test_what_cannot_be_served() -> None:
    """An empty pool refuses, an unknown pool or setting is a mistake of who asks."""
    setup = Setup()
    setup.pool.instances = ()
    told = await setup.explain(FIRST)
    assert (told["choice"], told["reason"]) == (None, "no_instance_available")
    for about in ({"x-smetric-cluster": "elsewhere"}, {"x-smetric-policy": "none"}, {"x-smetric-overload": "x"}):
        with pytest.raises(ConfigError):
            await setup.explain(FIRST, **about)
