"""The product's own router on a virtual clock, and its index, fed by what the instances' caches do.

Nothing of the product is modelled: `Router.decide`, the policies, `Loads`, the speculation and `MemoryIndex` are those
that ship. Left out is what a simulation has no use for: bodies, templates, hashing. A block of the trace stands for a
prompt block, a token for BYTES bytes.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar

from extproc.base.errors import RenderError
from extproc.base.facts import Fact
from extproc.base.model import Instance, Request, Role, Source
from extproc.index import Change
from extproc.index.memory import MemoryIndex
from extproc.index.routed_cache import RoutedCache
from extproc.routing.policies import registry
from extproc.routing.pools.loads import Loads
from extproc.routing.pools.pool import Pool
from extproc.routing.query import Query
from extproc.routing.route_settings import RouteSettings
from extproc.routing.router import Decision, Router
from loadgen.simulation.instance import Event, Removed, Stored
from loadgen.simulation.scenario import IndexView, Layout, Scenario

BYTES = 4  # of a token: what prompts of code and prose have on average
POOL = "simulated"
DECODER = "decoder"  # where everything is decoded when instances only prefill
FOLLOWED = "simulated"  # the address of an instance's events
ROUTED_TTL_S = 600.0  # of a routed pool's entries, the product's default

T = TypeVar("T")


class ProductRouter:
    """Routes requests, and learns from the instances what their caches hold."""

    def __init__(self, scenario: Scenario, names: Sequence[str], block_size: int, blocks: int) -> None:
        """For instances of these names, with caches of `blocks` blocks of `block_size` tokens."""
        self._index = MemoryIndex()
        self._router = Router(self._index, Loads(), partial(random.Random(scenario.seed).getrandbits, 64))
        routed = scenario.index is IndexView.ROUTED
        self._pool = Pool(
            POOL,
            _NoPrompts(),
            block_bytes=block_size * BYTES,
            source=Source.ROUTED if routed else Source.EVENTS,
            instances=_instances(scenario.layout, names),
        )
        options = dict(registry.options(scenario.policy)) | dict(scenario.options)
        self._route = RouteSettings(POOL, scenario.policy, options)
        self._divisible = scenario.layout is Layout.DISAGGREGATED
        self._routed = RoutedCache(POOL, blocks, ROUTED_TTL_S) if routed else None
        self._evicts = scenario.index is IndexView.EXACT

    def route(self, turn: int, history: int, prompt: int, chain: Sequence[int], now: float) -> Decision:
        """Choose an instance. Lengths in tokens; `chain` names the prompt's whole blocks."""
        query = Query(turn, history * BYTES, prompt * BYTES, chain, divisible=self._divisible)
        held = _completed(self._index.match(POOL, chain)) if chain else {}
        routed = self._router.decide(self._pool, self._route, query, held, now=now)
        if self._routed is not None and chain:
            self._apply([self._routed.note(routed.choice.computes.name, chain, now)])
        return routed

    def learn(self, instance: str, events: Sequence[Event], now: float) -> None:
        """Index what an instance's step did to its cache, then let guesses end by it."""
        if self._routed is not None or not events:
            return
        changes: list[Change] = []
        for event in events:
            match event:
                case Stored(keys):
                    changes.append(Change(POOL, instance, add=keys))
                case Removed(keys) if self._evicts:
                    changes.append(Change(POOL, instance, remove=keys))
        self._apply(changes)
        if stored := [event.keys[-1] for event in events if isinstance(event, Stored)]:
            self.tell(instance, stored, now)

    def tell(self, instance: str, stored: Sequence[int], now: float) -> None:
        """The instance said up to which keys prompts are stored."""
        self._pool.hear(Fact(instance, stored=stored), now)

    def _apply(self, changes: Sequence[Change]) -> None:
        _completed(self._index.apply(changes))


class _NoPrompts:
    """The simulation renders nothing: queries come ready made."""

    collects = False

    def render(self, request: Request) -> NoReturn:
        raise RenderError("a simulated pool has no templates")


def _instances(layout: Layout, names: Sequence[str]) -> Sequence[Instance]:
    if layout is Layout.COLOCATED:
        return [Instance(name, kv_events=FOLLOWED) for name in names]
    return [
        *(Instance(name, role=Role.PREFILL, kv_events=FOLLOWED) for name in names),
        Instance(DECODER, role=Role.DECODE),
    ]


def _completed(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends, as those of `MemoryIndex`."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("an index in memory waited for something")
