"""The composition root: settings become parts, parts a running server; on SIGTERM it drains and all is closed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc

from extproc import config
from extproc.admin.explain import Explainer, Explanation
from extproc.admin.http import Admin
from extproc.base import metrics
from extproc.base.errors import ConfigError, IndexUnavailable
from extproc.base.headers import CONFORMANCE_SELECTION
from extproc.base.model import Engine, EventReport, Instance, Knowledge, Source
from extproc.config import PoolSettings, Settings
from extproc.index.open import open_index
from extproc.index.routed_writer import Recorder
from extproc.instances.discovery import Discovery
from extproc.instances.health_checks import HealthChecker
from extproc.kv_events.engines import sglang, vllm
from extproc.kv_events.follower import Follower
from extproc.processor import tls
from extproc.processor.grpc_health import GrpcHealth
from extproc.processor.prefiller import Prefiller
from extproc.processor.routes import Routes
from extproc.processor.server import OPTIONS, Processor, credentials
from extproc.processor.stream import Services
from extproc.prompts.renderer import PlainRenderer, Renderer
from extproc.prompts.tokenizer.vocabulary import Vocabulary
from extproc.routing.pools import mismatch
from extproc.routing.pools.loads import Loads
from extproc.routing.pools.pool import Pool
from extproc.routing.router import Decision, Router
from extproc.shared_state.link import without_secrets
from extproc.shared_state.load_exchange import RENEW_S, Leases, LoadExchange

_log = logging.getLogger(__name__)

AGREEMENT_S = 10.0  # between two looks whether prompts match caches at all
AGREEMENT_AGAIN_S = 300.0  # until the same complaint is repeated

ADAPTERS = {Engine.VLLM: vllm.decode, Engine.SGLANG: sglang.decode}


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class Options:
    """The command line of one process."""

    envoy_yaml: Path
    listen: Address
    health: Address
    metrics: Address
    index: str
    workers: int
    drain_timeout_s: float
    follow: bool  # whether this `serve`, or a child of it, follows the engines' events
    until_stdin_closes: bool  # a child of `serve` stops when its parent does
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_self_signed: bool = False
    conformance: bool = False  # let requests choose their instance: for conformance tests of gateways
    debug_explain: bool = False  # serve /debug/explain on an address that others can reach
    replica: str = ""  # whom this process succeeds: what that one followed is taken over at once

    @property
    def shared(self) -> bool:
        """Whether other processes use the same index."""
        return not self.index.startswith("memory:")


def stop_event(*, until_stdin_closes: bool) -> asyncio.Event:
    """An event that SIGTERM and SIGINT set, and for a child of `serve` the end of its standard input."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def closed() -> None:
        loop.remove_reader(sys.stdin.fileno())
        stop.set()

    if until_stdin_closes:
        loop.add_reader(sys.stdin.fileno(), closed)
    return stop


async def serve(settings: Settings, options: Options, stop: asyncio.Event, *, follow: bool) -> None:
    """One worker: serve Envoy until `stop`, then drain. Raises ConfigError where a part cannot start."""
    async with contextlib.AsyncExitStack() as stack:
        node = Node(settings, options, follow=follow)
        stack.push_async_callback(node.close)
        routes, record = Routes(settings.default), _record(node.recorder)
        prefiller = Prefiller()
        stack.push_async_callback(prefiller.close)
        processor = Processor(Services(node.router, node.pools, routes, record, prefiller, options.conformance))
        node.streams = lambda: processor.streams
        server, probes, health = grpc.aio.server(options=OPTIONS), grpc.aio.server(), GrpcHealth()
        server.add_generic_rpc_handlers((processor.handler(),))
        for one in (server, probes):
            health.add_to(one)
        await health.set(ready=False)
        certificates = tls.source(options.tls_cert, options.tls_key, self_signed=options.tls_self_signed)
        _bind(server, "--listen", options.listen, certificates)
        _bind(probes, "--health", options.health)
        if not await _before(stop, node.start()):
            return
        checks = {name: pool.health_check for name, pool in settings.pools.items() if pool.health_check is not None}
        checker = HealthChecker(node.pools, checks)
        stack.push_async_callback(checker.close)
        checker.start()
        for one in (probes, server):
            await one.start()
        gc.collect()
        gc.freeze()  # vocabularies and types stay for good: no later collection need look at them
        await health.set(ready=True)
        names, secured = ", ".join(node.pools), "TLS" if certificates else "plaintext"
        index = without_secrets(options.index)
        _log.info("serving ext_proc on %s (%s), index %s, pools %s", options.listen, secured, index, names)
        if options.conformance:
            _log.warning("--conformance: any client can choose its instance by %s", CONFORMANCE_SELECTION)

        await stop.wait()
        _log.info("draining %d streams, at most %g s", processor.streams, options.drain_timeout_s)
        await health.set(ready=False)
        await server.stop(options.drain_timeout_s)
        await probes.stop(0)


async def _before(stop: asyncio.Event, work: Coroutine[None, None, None]) -> bool:
    """Whether the work was done before `stop`, which ends it: a start may wait long for DNS and for Redis."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
        return working.done()
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


async def follow(settings: Settings, options: Options) -> None:
    """Follow the engines' events into a shared index, without serving Envoy, until SIGTERM or SIGINT."""
    stop = stop_event(until_stdin_closes=options.until_stdin_closes)
    async with contextlib.AsyncExitStack() as stack:
        node = Node(settings, options, follow=True)
        stack.push_async_callback(node.close)
        if await _before(stop, node.start()):
            await stop.wait()


async def explain(settings: Settings, index_url: str, about: Mapping[str, str], body: bytes) -> Explanation:
    """Explain a request without a server: no load is known, and of the caches what a shared index says.

    Endpoints count by the names that the configuration gives them. Raises ConfigError.
    """
    index, loads = open_index(index_url), Loads()
    pools = {name: pool_of(pool) for name, pool in settings.pools.items()}
    for name, pool in settings.pools.items():
        pools[name].instances = [one for each in pool.endpoints for one in config.instances(each, each.host)]
    try:
        return await Explainer(Router(index, loads), loads, pools, settings.default).answer(about, body, now=0.0)
    finally:
        await index.close()


class Node:
    """What every process of the product has: pools that follow Envoy's clusters, an index, an admin port."""

    def __init__(self, settings: Settings, options: Options, *, follow: bool) -> None:
        self._options = options
        self.loads = Loads()
        self.index = open_index(options.index)
        self.router = Router(self.index, self.loads, lambda: secrets.randbits(64))
        self.pools = {name: pool_of(pool) for name, pool in settings.pools.items()}
        self._followers = {
            name: Follower(
                name, Vocabulary.load(pool.model_dir), pool.prompt_block_bytes, self.index, ADAPTERS[pool.engine]
            )
            for name, pool in settings.pools.items()
            if follow and pool.source is Source.EVENTS and pool.model_dir is not None
        }
        replica = options.replica or secrets.token_hex(8)
        routed = [name for name, pool in self.pools.items() if pool.source is Source.ROUTED]
        self.recorder = Recorder(self.index, routed, writer=replica)
        self._leases = Leases.from_url(options.index, replica) if self._followers and options.shared else None
        self._tasks: list[asyncio.Task[None]] = []
        if options.shared and not follow:
            exchange = LoadExchange.from_url(options.index, replica, self.loads, list(self.pools))
            self._tasks.append(asyncio.create_task(exchange.run(), name="loads of other routers"))
            for pool in self.pools.values():
                pool.cursor = secrets.randbits(16)  # routers that start together must not take turns in step
        self._discovery = Discovery(settings, self._changed)
        explained = options.metrics.local or options.debug_explain
        self._explainer = Explainer(self.router, self.loads, self.pools, settings.default)
        self._admin = Admin(self.state, self.explain if explained else None)
        self.streams: Callable[[], int] = lambda: 0

    async def start(self) -> None:
        """Find the instances, follow their events, open the admin port. Raises ConfigError where that is taken."""
        for name in self.pools:
            with contextlib.suppress(IndexUnavailable):
                await self.index.reports(name)  # opens the connections, which no decision should have to wait for
        await self._discovery.start()
        if self._leases is not None:
            self._tasks.append(asyncio.create_task(self._follow_leased(self._leases), name="leases"))
        self._tasks.append(asyncio.create_task(self._watch_agreement(), name="agreement"))
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
        pools = {name: await self._pool_state(pool) for name, pool in self.pools.items()}
        return {"pools": pools, "streams": self.streams()}

    async def explain(self, about: Mapping[str, str], body: bytes) -> Mapping[str, Any]:
        """What `/debug/explain` shows of a request. Raises ConfigError for settings that a route could not have."""
        return (await self._explainer.answer(about, body, now=time.monotonic())).json()

    def _changed(self, name: str, instances: tuple[Instance, ...]) -> None:
        """DNS or EDS says who is in a pool."""
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

    async def _watch_agreement(self) -> None:
        """Say loudly, but not all the time, where nothing that is routed matches what the engines cache."""
        said: dict[str, float] = {}
        while True:
            await asyncio.sleep(AGREEMENT_S)
            for pool in self.pools.values():
                broken = False
                if pool.source is Source.EVENTS:
                    with contextlib.suppress(IndexUnavailable):
                        broken = pool.agreement.broken(sum((await self.index.sizes(pool.name)).values()))
                metrics.PROMPT_MISMATCH.labels(pool.name).set(broken)
                now = time.monotonic()
                if broken and now - said.get(pool.name, -AGREEMENT_AGAIN_S) >= AGREEMENT_AGAIN_S:
                    said[pool.name] = now
                    _log.error(mismatch.advice(pool.name, pool.agreement.unmatched))

    async def _pool_state(self, pool: Pool) -> Mapping[str, Any]:
        follower = self._followers.get(pool.name)
        try:
            sizes: Mapping[str, int] | None = await self.index.sizes(pool.name)
            reports = follower.reports() if follower else await self.index.reports(pool.name)
        except IndexUnavailable:
            sizes, reports = None, {}
        names = [instance.name for instance in pool.instances]
        now = time.monotonic()
        left_alone = pool.suspects.left_alone(now)
        states: dict[str, Any] = {}
        for instance, in_flight, unprefilled in zip(pool.instances, *self.loads.view(pool.name, names), strict=True):
            blocks = None if sizes is None else sizes.get(instance.name, 0)
            follows = pool.source is Source.EVENTS and instance.kv_events is not None
            report = reports.get(instance.name, UNHEARD) if follows else None
            unhealthy = pool.unhealthy is not None and instance.address in pool.unhealthy
            states[instance.name] = {
                "in_flight": in_flight,
                "unprefilled_bytes": unprefilled,
                "healthy": None if pool.unhealthy is None else not unhealthy,
                "left_alone_s": round(left_alone.get(instance.address, 0.0), 1),
                "index_blocks": blocks,
                "events": report,
            }
            metrics.IN_FLIGHT.labels(pool.name, instance.name).set(in_flight)
            metrics.UNHEALTHY.labels(pool.name, instance.name).set(unhealthy)
            metrics.UNPREFILLED_BYTES.labels(pool.name, instance.name).set(unprefilled)
            metrics.INDEX_BLOCKS.labels(pool.name, instance.name).set(blocks or 0)
        pool.speculation.expire(now)
        metrics.SPECULATIVE_BLOCKS.labels(pool.name).set(len(pool.speculation))
        return {"source": pool.source, "speculative_blocks": len(pool.speculation), "instances": states}


UNHEARD = EventReport(Knowledge.UNKNOWN, -1, 0.0)


def _record(recorder: Recorder) -> Callable[[Pool, Decision], None]:
    return lambda pool, routed: recorder.note(pool.name, routed.choice.computes.name, routed.chain)


def pool_of(settings: PoolSettings) -> Pool:
    """A pool as it is configured, before any instance of it is known."""
    return Pool(
        name=settings.name,
        renderer=PlainRenderer() if settings.model_dir is None else Renderer.load(settings.model_dir),
        models=settings.models,
        block_bytes=settings.prompt_block_bytes,
        source=settings.source,
    )


def _bind(server: grpc.aio.Server, flag: str, address: Address, certificates: tls.Source | None = None) -> None:
    try:
        _probe(address)
        if certificates is None:
            server.add_insecure_port(str(address))
        else:
            server.add_secure_port(str(address), credentials(certificates))
    except (RuntimeError, OSError) as error:
        raise ConfigError(f"{flag}: cannot listen on {address}; is another process there?") from error


def _probe(address: Address) -> None:
    """Raises OSError where the port is taken. gRPC finds out too, and prints a line of its own source about it."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        socket.create_server((address.host, address.port), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise
