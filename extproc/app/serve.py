"""One process that serves Envoy, or that follows engines for others: it starts, drains on SIGTERM, and closes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import grpc

from extproc.app import ports
from extproc.app.configuration import Changes
from extproc.app.large_bodies import LargeBodies
from extproc.app.node import Node
from extproc.app.options import Address, Options
from extproc.base.errors import ConfigError
from extproc.base.headers import CONFORMANCE_SELECTION
from extproc.base.model import Source
from extproc.config import Settings
from extproc.index.piped import Inlet
from extproc.index.routed_writer import Recorder
from extproc.processor import tls
from extproc.processor.grpc_health import GrpcHealth
from extproc.processor.prefiller import Prefiller
from extproc.processor.server import BASIC, Processor, credentials, drain
from extproc.processor.server import options as server_options
from extproc.processor.shared_token import Access
from extproc.processor.stream import Services
from extproc.routing.pools.pool import Pool
from extproc.routing.router import Decision
from extproc.shared_state.redis_url import without_secrets

_log = logging.getLogger(__name__)

Shown = Callable[[], Mapping[str, Any]]


def stop_event(hurry: Callable[[], None] | None = None) -> asyncio.Event:
    """An event that SIGTERM and SIGINT set.

    SIGHUP ends no process: its default would do that, without a drain. `hurry` is called instead, if there is one.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, hurry or _mistaken)
    return stop


def _mistaken() -> None:
    _log.warning("SIGHUP to a child changes nothing: send it to `serve`, whose child this is")


async def serve(
    settings: Settings,
    options: Options,
    stop: asyncio.Event,
    changes: Changes,
    *,
    inlet: Inlet | None = None,
    shown: Shown | None = None,
) -> None:
    """One worker: serve Envoy until `stop`, then drain. Raises ConfigError where a part cannot start.

    `inlet` is what a child that follows the engines writes, `shown` tells how the configuration was loaded, for
    `/debug/state`.
    """
    async with contextlib.AsyncExitStack() as stack:
        bodies = LargeBodies(settings.pools.values(), log_level=options.log_level)
        stack.push_async_callback(bodies.close)
        node = Node(settings, options, reader=bodies, inlet=inlet)
        stack.push_async_callback(node.close)
        node.page.configuration = shown
        record = _record(node.recorder)
        prefiller = Prefiller()
        stack.push_async_callback(prefiller.close)
        services = Services(
            node.router,
            node.pools,
            node.routes,
            record,
            prefiller,
            conformance=options.conformance,
            access=Access(options.tokens),
            gateway=settings.gateway,
        )
        processor = Processor(services)
        node.page.streams = lambda: processor.streams
        server, probes, health = (
            grpc.aio.server(options=server_options(options.max_streams)),
            grpc.aio.server(options=BASIC),
            GrpcHealth(),
        )
        server.add_generic_rpc_handlers((processor.handler(),))
        for one in (server, probes):
            health.add_to(one)
        await health.set(ready=False)
        certificates = tls.source(options.tls_cert, options.tls_key, self_signed=options.tls_self_signed)
        clients = tls.authorities(options.tls_client_ca, certificates)
        if not await _before(stop, ports.free({"--listen": options.listen, "--health": options.health})):
            return
        _bind(server, "--listen", options.listen, certificates and credentials(certificates, clients))
        _bind(probes, "--health", options.health)
        if not await _before(stop, node.start()):
            return
        node.check_health()
        for one in (probes, server):
            await one.start()
        gc.collect()
        gc.freeze()  # vocabularies and types stay for ever: no later collection needs to look at them
        await health.set(ready=True)
        names, secured = ", ".join(node.pools), _secured(options)
        index = without_secrets(options.index)
        _log.info("serving ext_proc on %s (%s), index %s, pools %s", options.listen, secured, index, names)
        if options.conformance:
            _log.warning("--conformance: any client can choose its instance by %s", CONFORMANCE_SELECTION)

        async def change(settings: Settings) -> None:
            await node.change(settings)
            services.gateway = settings.gateway
            bodies.change(settings.pools.values())

        await _obeying(changes, change, stop)
        _log.info("draining %d streams, at most %g s", processor.streams, options.drain_timeout_s)
        await health.set(ready=False)
        await drain(server, processor, options.drain_timeout_s)
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


async def follow(
    settings: Settings, options: Options, stop: asyncio.Event, changes: Changes, *, shown: Shown | None = None
) -> None:
    """Follow the engines' events into an index of other processes, without serving Envoy, until `stop`."""
    async with contextlib.AsyncExitStack() as stack:
        node = Node(settings, options, follow=True)
        stack.push_async_callback(node.close)
        node.page.configuration = shown
        if await _before(stop, node.start()):
            await _obeying(changes, node.change, stop)


async def _obeying(
    changes: Changes, change: Callable[[Settings], Coroutine[None, None, None]], stop: asyncio.Event
) -> None:
    """Take over other settings until `stop`."""
    obeying = asyncio.create_task(changes.obey(change), name="changes of the configuration")
    try:
        await stop.wait()
    finally:
        obeying.cancel()
        await asyncio.gather(obeying, return_exceptions=True)


def _secured(options: Options) -> str:
    """How the gRPC port is guarded, for the log."""
    tls_on = options.tls_cert or options.tls_self_signed
    kinds = ["TLS" if tls_on else "plaintext"]
    kinds += ["client certificates"] * (options.tls_client_ca is not None) + ["a token"] * bool(options.tokens)
    return ", ".join(kinds)


def _record(recorder: Recorder) -> Callable[[Pool, Decision], None]:
    def note(pool: Pool, routed: Decision) -> None:
        """Of pools that follow events only what these cannot tell."""
        name, media = routed.choice.computes.name, routed.query.media
        if pool.source is Source.ROUTED:
            recorder.note(pool.name, name, routed.chain)
        if media is not None:
            recorder.note(pool.name, name, media.turns)

    return note


def _bind(server: grpc.aio.Server, flag: str, address: Address, secured: grpc.ServerCredentials | None = None) -> None:
    try:
        if secured is None:
            server.add_insecure_port(str(address))
        else:
            server.add_secure_port(str(address), secured)
    except RuntimeError as error:
        raise ConfigError(f"{flag}: cannot listen on {address}; is another process there?") from error
