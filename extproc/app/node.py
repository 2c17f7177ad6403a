"""What every process of the product has: pools that follow Envoy's clusters, an index, an admin port.

It builds the parts from the settings and wires them together; `serve` runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from extproc.admin.explain import Explainer
from extproc.admin.http import Admin
from extproc.admin.state import StatePage
from extproc.app import memory, mismatch_watch, stalls
from extproc.app.options import Options
from extproc.app.pools import pool_of
from extproc.base import metrics
from extproc.base.errors import ConfigError, IndexUnavailable
from extproc.base.facts import Fact
from extproc.base.model import Engine, Instance, Source
from extproc.config import Settings
from extproc.index import trial
from extproc.index.open import open_index
from extproc.index.routed_writer import Recorder
from extproc.instances.discovery import Discovery
from extproc.kv_events.engines import sglang, vllm
from extproc.kv_events.follower import Follower
from extproc.prompts.tokenizer.vocabulary import Vocabulary
from extproc.routing.pools.loads import Loads
from extproc.routing.router import Router
from extproc.shared_state import standing
from extproc.shared_state.fact_exchange import FactListener, FactPublisher
from extproc.shared_state.leases import RENEW_S, Leases
from extproc.shared_state.load_exchange import LoadExchange

ADAPTERS = {Engine.VLLM: vllm.decode, Engine.SGLANG: sglang.decode}


class Node:
    """The parts of one process, built and wired; `start` and `close` bracket its life."""

    def __init__(self, settings: Settings, options: Options, *, follow: bool) -> None:
        self._options = options
        self.loads = Loads()
        self.index = open_index(options.index)
        self.router = Router(self.index, self.loads, lambda: secrets.randbits(64))
        self.pools = {name: pool_of(pool) for name, pool in settings.pools.items()}
        self._tasks: list[asyncio.Task[None]] = []
        tell = self._publish_facts() if follow and options.shared else self._heard
        self._followers = {
            name: Follower(
                name, words, pool.prompt_block_bytes, self.index, ADAPTERS[pool.engine], loose=words, tell=tell
            )
            for name, pool in settings.pools.items()
            if follow and pool.source is Source.EVENTS and pool.model_dir is not None
            for words in [Vocabulary.load(pool.model_dir)]
        }
        replica = options.replica or secrets.token_hex(8)
        routed = [name for name, pool in self.pools.items() if pool.source is Source.ROUTED]
        followed = [name for name in self.pools if name not in routed]
        self.recorder = Recorder(self.index, routed, followed, writer=replica)
        self._leases = Leases.from_url(options.index, replica) if self._followers and options.shared else None
        if options.shared and not follow:
            exchange = LoadExchange.from_url(options.index, replica, self.loads, list(self.pools))
            self._tasks.append(asyncio.create_task(exchange.run(), name="loads of other routers"))
            listener = FactListener.from_url(options.index, self._heard)
            self._tasks.append(asyncio.create_task(listener.run(), name="facts of the engines"))
            for pool in self.pools.values():
                pool.cursor = secrets.randbits(16)  # routers that start together must not choose in step
        self._discovery = Discovery(settings, self._changed)
        explained = options.metrics.local or options.debug_explain
        self._explainer = Explainer(self.router, self.loads, self.pools, settings.default)
        following = {name: follower.reports for name, follower in self._followers.items()}
        self.page = StatePage(self.pools, self.index, self.loads, following)
        if options.shared:
            self.page.redis = standing.shown
        self._admin = Admin(self.state, self.explain if explained else None)

    async def start(self) -> None:
        """Find the instances, follow their events, open the admin port. Raises ConfigError where that is taken."""
        if self._options.shared:
            tried = trial.watch(self._options.index, self.pools.keys)
            self._tasks.append(asyncio.create_task(tried, name="trial of Redis"))
        for name in self.pools:
            with contextlib.suppress(IndexUnavailable):
                await self.index.reports(name)  # opens the connections, which no decision should have to wait for
        await self._discovery.start()
        if self._leases is not None:
            self._tasks.append(asyncio.create_task(self._follow_leased(self._leases), name="leases"))
        self._tasks.append(asyncio.create_task(stalls.watch(), name="stalls of the loop"))
        self._tasks.append(asyncio.create_task(memory.give_back(), name="memory goes back"))
        self._tasks.append(asyncio.create_task(mismatch_watch.watch(self.pools.values(), self.index), name="mismatch"))
        try:
            await self._admin.start(self._options.metrics.host, self._options.metrics.port)
        except OSError as error:
            raise ConfigError(f"--metrics: cannot listen on {self._options.metrics}: {error.strerror}") from error

    async def close(self) -> None:
        """Stop everything, in the opposite order."""
        await self._admin.close()
        await self._discovery.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.recorder.close()
        if self._leases is not None:
            await self._leases.close()
        for follower in self._followers.values():
            await follower.close()
        await self.index.close()

    async def state(self) -> Mapping[str, Any]:
        """What `/debug/state` shows; brings the gauges up to date with it."""
        return await self.page.read(now=time.monotonic())

    async def explain(self, about: Mapping[str, str], body: bytes) -> Mapping[str, Any]:
        """What `/debug/explain` shows of a request. Raises ConfigError for settings that a route could not have."""
        return (await self._explainer.answer(about, body, now=time.monotonic())).json()

    def _publish_facts(self) -> Callable[[str, Fact], None]:
        publisher = FactPublisher.from_url(self._options.index)
        self._tasks.append(asyncio.create_task(publisher.run(), name="facts for the routers"))
        return publisher.tell

    def _heard(self, pool: str, fact: Fact) -> None:
        """An engine of a pool spoke."""
        if pool in self.pools:
            self.pools[pool].speculation.hear(fact, time.monotonic())

    def _changed(self, name: str, instances: tuple[Instance, ...]) -> None:
        """DNS or EDS has found the instances of a pool."""
        left = {instance.name for instance in self.pools[name].instances} - {instance.name for instance in instances}
        self.pools[name].instances = instances
        for gone in left:
            metrics.forget_instance(name, gone)
        self.recorder.keep(name, [instance.name for instance in instances])
        if name in self._followers and self._leases is None:
            self._followers[name].follow(instances)

    async def _follow_leased(self, leases: Leases) -> None:
        """Follow those instances whose events no other process follows; takes over within seconds where one dies."""
        while True:
            for name, follower in self._followers.items():
                instances = {i.name: i for i in self.pools[name].instances if i.kv_events is not None}
                held = await leases.renew(name, instances)
                follower.follow([instances[one] for one in sorted(held)], handed_over=instances.keys() - held)
            await asyncio.sleep(RENEW_S)
