"""What every process of the product has: pools that follow Envoy's clusters, an index, an admin port.

It builds the parts from the settings and wires them together; `serve` runs it. One file, of a little over 300 lines, so
that what is wired to what, at the start and when the configuration changes, is read in one place.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from extproc.admin.explain import Explainer
from extproc.admin.http import Admin
from extproc.admin.state import StatePage
from extproc.app import memory, mismatch_watch, ports, stalls
from extproc.app.options import Address, Options
from extproc.app.pools import Files, files_of, pool_of
from extproc.base import metrics
from extproc.base.errors import ConfigError, IndexUnavailable
from extproc.base.facts import Fact
from extproc.base.model import Engine, EventReport, Instance, Source
from extproc.config import HealthCheck, PoolSettings, Settings
from extproc.index import trial
from extproc.index.open import open_index
from extproc.index.piped import Inlet, PipedIndex
from extproc.index.routed_writer import Recorder
from extproc.instances.discovery import Discovery
from extproc.instances.health_checks import HealthChecker
from extproc.kv_events.engines import sglang, vllm
from extproc.kv_events.follower import Follower
from extproc.processor.routes import Routes
from extproc.prompts.tokenizer.vocabulary import Vocabulary
from extproc.requests.beginnings import Beginnings
from extproc.routing.pools.loads import Loads
from extproc.routing.pools.pool import Pool
from extproc.routing.reading import Reader
from extproc.routing.router import Router
from extproc.shared_state import standing
from extproc.shared_state.fact_exchange import FactListener, FactPublisher
from extproc.shared_state.leases import RENEW_S, Leases
from extproc.shared_state.load_exchange import LoadExchange
from extproc.shared_state.shared_secret import SharedSecret

ADAPTERS = {Engine.VLLM: vllm.decode, Engine.SGLANG: sglang.decode}


# What of a pool's settings makes it another pool: the rest may change while it serves.
_SHAPE: Final = ("model_dir", "prompt_block_bytes", "source", "engine")


class _Parts(NamedTuple):
    settings: PoolSettings
    pool: Pool
    words: Vocabulary | None  # for its follower; None where this process follows nobody there
    files: Files


class Node:
    """The parts of one process, built and wired; `start` and `close` bracket its life."""

    def __init__(
        self,
        settings: Settings,
        options: Options,
        *,
        follow: bool = False,
        reader: Reader | None = None,
        inlet: Inlet | None = None,
    ) -> None:
        """`follow`: whether this process follows the engines' events. `inlet`: what another one writes to its index."""
        self._settings = settings
        self._options = options
        self._follow = follow
        self.loads = Loads()
        self.index = open_index(options.index)
        self.router = Router(self.index, self.loads, lambda: secrets.randbits(64), reader)
        self.pools: dict[str, Pool] = {}
        self.routes = Routes(settings.default)
        self._beginnings = Beginnings(options.remember_bytes)
        self._tasks: list[asyncio.Task[None]] = []
        self._tell = self._teller()
        self._shared_secret = SharedSecret.from_url(options.index) if options.shared else None
        self._secret = None if options.shared else options.secret  # of all keys, once it is known
        self._followers: dict[str, Follower] = {}
        self._files: dict[str, Files] = {}  # of the models, as they were when they were read
        for parts in map(self._read, settings.pools.values()):
            self._take(parts)
        replica = options.replica or secrets.token_hex(8)
        self.recorder = Recorder(self.index, *_by_source(settings), writer=replica)
        self._leases = Leases.from_url(options.index, replica) if follow and options.shared else None
        if options.shared and not follow:
            exchange = LoadExchange.from_url(options.index, replica, self.loads, self.pools.keys())
            self._tasks.append(asyncio.create_task(exchange.run(), name="loads of other routers"))
            listener = FactListener.from_url(options.index, self._heard)
            self._tasks.append(asyncio.create_task(listener.run(), name="facts of the engines"))
        self._inlet = inlet
        self._discovery = Discovery(settings, self._changed)
        explained = options.debug_explain or (options.debug_address is not None and options.debug_address.local)
        self._explainer = Explainer(self.router, self.loads, self.pools, settings.default)
        self._checker = HealthChecker(self.pools, _checks(settings))
        self.page = StatePage(self.pools, self.index, self.loads, self._reports)
        if options.shared:
            self.page.redis = standing.shown
        self._admin = Admin(self.state, self.explain if explained else None, tokens=options.debug_tokens)

    async def start(self) -> None:
        """Find the instances, follow their events, open the admin port. Raises ConfigError where that is taken."""
        if self._inlet is not None:
            inlet = self._inlet.run(self.index, self._heard)
            self._tasks.append(asyncio.create_task(inlet, name="events of a child"))
        if self._options.shared:
            tried = trial.watch(self._options.index, self.pools.keys)
            self._tasks.append(asyncio.create_task(tried, name="trial of Redis"))
        if self._shared_secret is not None:
            with contextlib.suppress(IndexUnavailable):
                await self._shared_secret.look()
                self._keyed(self._shared_secret.secret)
            run = self._shared_secret.run(self._keyed)
            self._tasks.append(asyncio.create_task(run, name="secret of the index"))
        for name in self.pools:
            with contextlib.suppress(IndexUnavailable):
                await self.index.reports(name)  # opens the connections, which no decision should have to wait for
        await self._discovery.start()
        if self._leases is not None:
            self._tasks.append(asyncio.create_task(self._follow_leased(self._leases), name="leases"))
        self._tasks.append(asyncio.create_task(stalls.watch(), name="stalls of the loop"))
        self._tasks.append(asyncio.create_task(memory.give_back(), name="memory goes back"))
        self._tasks.append(asyncio.create_task(mismatch_watch.watch(self.pools, self.index), name="mismatch"))
        metrics_at, debug_at = self._options.metrics, self._options.debug_address
        await self._open("--metrics", metrics_at, metrics=True, debug=debug_at == metrics_at)
        if debug_at is not None and debug_at != metrics_at:
            await self._open("--debug", debug_at, metrics=False, debug=True)

    async def _open(self, flag: str, address: Address, *, metrics: bool, debug: bool) -> None:
        await ports.free({flag: address})
        try:
            await self._admin.start(address.host, address.port, metrics=metrics, debug=debug)
        except OSError as error:
            raise ConfigError(f"{flag}: cannot listen on {address}: {error.strerror}") from error

    async def close(self) -> None:
        """Stop everything, in the opposite order."""
        await self._admin.close()
        await self._checker.close()
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
        if self._shared_secret is not None:
            await self._shared_secret.close()

    def check_health(self) -> None:
        """From now on ask the hosts how they are, as Envoy does."""
        self._checker.start()

    async def change(self, settings: Settings) -> None:
        """Take over another configuration. Streams that are open go on with what they began with.

        What is slow, the files of models, is read first and in a thread: where that fails nothing has changed.
        Raises ConfigError then.
        """
        before = self._settings
        anew = [pool for name, pool in settings.pools.items() if self._differs(before.pools.get(name), pool)]
        read = await asyncio.to_thread(lambda: [self._read(pool) for pool in anew])
        gone = before.pools.keys() - settings.pools.keys()
        for name in (*gone, *(pool.name for pool in anew)):
            if (follower := self._followers.pop(name, None)) is not None:
                await follower.end()
        for name in gone:
            for instance in self.pools.pop(name).instances:
                metrics.forget_instance(name, instance.name)
        for parts in read:
            self._take(parts)
        for name, pool in settings.pools.items():
            self.pools[name].models = pool.models
            self.pools[name].prefills.learner.give(pool.pace)
        self._settings = settings
        self.recorder.change(*_by_source(settings))
        self.routes.change(settings.default)
        self._explainer.default = settings.default
        await self._discovery.change(settings)
        await self._checker.change(_checks(settings))

    async def state(self) -> Mapping[str, Any]:
        """What `/debug/state` shows; brings the gauges up to date with it."""
        metrics.REMEMBERED_BYTES.set(self._beginnings.held_bytes)
        return await self.page.read(now=time.monotonic())

    async def explain(self, about: Mapping[str, str], body: bytes) -> Mapping[str, Any]:
        """What `/debug/explain` shows of a request. Raises ConfigError for settings that a route could not have."""
        return (await self._explainer.answer(about, body, now=time.monotonic())).json()

    def _reports(self, pool: str) -> Mapping[str, EventReport] | None:
        """Where the followers of this process stand; None where others follow the pool."""
        return self._followers[pool].reports() if pool in self._followers else None

    def _differs(self, before: PoolSettings | None, now: PoolSettings) -> bool:
        """Whether a pool is to be made anew: what its prompts look like, or how its caches are known, is different."""
        if before is None or self._files[now.name] != files_of(now):
            return True
        return any(getattr(before, name) != getattr(now, name) for name in _SHAPE)

    def _read(self, settings: PoolSettings) -> _Parts:
        """Read what a pool needs of its model's files. Raises ConfigError."""
        files = files_of(settings)
        words = None
        if self._follow and settings.source is Source.EVENTS and settings.model_dir is not None:
            words = Vocabulary.load(settings.model_dir)
        return _Parts(settings, pool_of(settings), words, files)

    def _take(self, parts: _Parts) -> None:
        """A pool is there from now on, in the place of the one of its name if there was one."""
        settings, pool, words, files = parts
        before = self.pools.get(pool.name)
        if before is not None:
            pool.succeed(before)
        elif self._options.shared:
            pool.cursor = secrets.randbits(16)  # routers that start together must not choose in step
        pool.secret, pool.beginnings = self._secret, self._beginnings
        self.pools[pool.name] = pool
        self._files[pool.name] = files
        if words is not None:
            adapter = ADAPTERS[settings.engine]
            self._followers[pool.name] = Follower(
                pool.name,
                words,
                settings.prompt_block_bytes,
                self.index,
                adapter,
                secret=self._secret or b"",
                loose=words,
                tell=self._tell,
            )
            if before is not None and self._leases is None:
                self._followers[pool.name].follow(pool.instances)

    def _keyed(self, secret: bytes | None) -> None:
        """The index's keys have this secret from now on."""
        known, self._secret = self._secret, secret
        for pool in self.pools.values():
            pool.secret = secret
        for follower in self._followers.values():
            follower.begin_anew(secret or b"")
        if known is not None:
            self.recorder.begin_anew()

    def _teller(self) -> Callable[[str, Fact], None]:
        """How what engines say reaches the routers."""
        if isinstance(self.index, PipedIndex):
            return self.index.tell
        if not (self._follow and self._options.shared):
            return self._heard
        publisher = FactPublisher.from_url(self._options.index)
        self._tasks.append(asyncio.create_task(publisher.run(), name="facts for the routers"))
        return publisher.tell

    def _heard(self, pool: str, fact: Fact) -> None:
        """An engine of a pool spoke."""
        if pool in self.pools:
            for ended in self.pools[pool].hear(fact, time.monotonic()):
                metrics.PROMPT_SECONDS.labels(pool, ended.instance).observe(ended.seconds)

    def _changed(self, name: str, instances: tuple[Instance, ...]) -> None:
        """DNS or EDS has found the instances of a pool."""
        if name not in self.pools:
            return
        left = {instance.name for instance in self.pools[name].instances} - {instance.name for instance in instances}
        self.pools[name].instances = instances
        for gone in left:
            metrics.forget_instance(name, gone)
        self.pools[name].prefills.keep({instance.name for instance in instances})
        self.recorder.keep(name, [instance.name for instance in instances])
        if name in self._followers and self._leases is None:
            self._followers[name].follow(instances)

    async def _follow_leased(self, leases: Leases) -> None:
        """Follow those instances whose events no other process follows; takes over within seconds where one dies."""
        while True:
            for name, follower in list(self._followers.items()) if self._secret is not None else ():
                instances = {i.name: i for i in self.pools[name].instances if i.kv_events is not None}
                held = await leases.renew(name, instances)
                if self._followers.get(name) is not follower:
                    continue  # another configuration came meanwhile
                follower.follow([instances[one] for one in sorted(held)], handed_over=instances.keys() - held)
            await asyncio.sleep(RENEW_S)


def _by_source(settings: Settings) -> tuple[Sequence[str], Sequence[str]]:
    """Names of the pools whose index is what was routed, and of those that follow events."""
    routed = [name for name, pool in settings.pools.items() if pool.source is Source.ROUTED]
    return routed, [name for name in settings.pools if name not in routed]


def _checks(settings: Settings) -> Mapping[str, HealthCheck]:
    return {name: pool.health_check for name, pool in settings.pools.items() if pool.health_check is not None}
