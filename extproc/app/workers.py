"""The processes of one `serve`: this one, more workers on ports of their own, and one that follows the engines' events.

A child follows the events, so that no flood of them delays a decision: with Redis it writes to the shared index, with
`memory://` through a pipe to that of this process. A child that dies is started again; children stop when this process
does, however it ends, because their standard input closes with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from extproc.app import serve as process
from extproc.app.child_job import ChildJob, Role
from extproc.app.configuration import Changes, Configuration
from extproc.app.options import Address, Debug, Options
from extproc.base.blocks import SECRET_BYTES
from extproc.base.errors import ConfigError
from extproc.base.model import Source
from extproc.config import Settings
from extproc.index import piped

_log = logging.getLogger(__name__)

STRIDE = 10  # from one worker's ports to the next one's: the defaults 9002, 9003 and 9090 never collide
KILL_AFTER_S = 5.0  # after the drain; a child that still runs then hangs
RESTART_S = 1.0  # between two starts of a child, so that a broken one does not spin


async def serve(settings: Settings, options: Options) -> None:
    """Run worker 0 here and the rest as children, until SIGTERM or SIGINT. Raises ConfigError where that cannot be."""
    if options.workers > 1 and not options.shared:
        raise ConfigError("--workers above 1 needs an index that they share: add --index redis://HOST:PORT/DB")
    _distinct(options)
    if not options.shared:
        options = replace(options, secret=secrets.token_bytes(SECRET_BYTES))
    changes = Changes()
    configuration = Configuration(settings, changes)
    stop = process.stop_event(configuration.hurry)
    patience_s = options.drain_timeout_s + KILL_AFTER_S
    inlet = None if options.shared else piped.Inlet()
    children = [
        asyncio.create_task(_keep_running(job, configuration, number, stop, patience_s, inlet))
        for number, job in enumerate(jobs(settings, options), 1)
    ]
    reading = asyncio.create_task(configuration.run(watch=options.watch), name="configuration")
    try:
        await process.serve(settings, options, stop, changes, inlet=inlet, shown=configuration.shown)
    finally:
        stop.set()
        reading.cancel()
        await asyncio.gather(*children, asyncio.gather(reading, return_exceptions=True))


async def follow(settings: Settings, options: Options) -> None:
    """Follow the engines' events for others, until SIGTERM or SIGINT. Raises ConfigError where that cannot be."""
    changes = Changes()
    configuration = Configuration(settings, changes)
    stop = process.stop_event(configuration.hurry)
    reading = asyncio.create_task(configuration.run(watch=options.watch), name="configuration")
    try:
        await process.follow(settings, options, stop, changes, shown=configuration.shown)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def jobs(settings: Settings, options: Options) -> Sequence[ChildJob]:
    """What each child is to do: the workers from 1 on, and the follower unless that is left to others."""
    work = [ChildJob(Role.SERVE, settings, _worker(options, number)) for number in range(1, options.workers)]
    if options.follow:
        work.append(ChildJob(Role.FOLLOW, settings, _follower(options)))
    return work


def _distinct(options: Options) -> None:
    """Raises ConfigError where two of the processes would want the same port."""
    last = options.workers + options.follow
    addresses = [("--metrics", _next(options.metrics, number)) for number in range(last)]
    if isinstance(options.debug, Address):
        addresses += [("--debug", _next(options.debug, number)) for number in range(last)]
    for flag, address in (("--listen", options.listen), ("--health", options.health)):
        addresses += [(flag, _next(address, number)) for number in range(options.workers)]
    taken: dict[int, str] = {}
    for flag, address in addresses:
        if address.port and taken.setdefault(address.port, flag) != flag:
            raise ConfigError(
                f"{flag} and {taken[address.port]} both come to port {address.port}: each of the {options.workers} "
                f"workers takes ports {STRIDE} further on"
            )


def _worker(options: Options, number: int) -> Options:
    return replace(
        options,
        listen=_next(options.listen, number),
        health=_next(options.health, number),
        metrics=_next(options.metrics, number),
        debug=_next_debug(options.debug, number),
        workers=1,
        follow=False,
    )


def _follower(options: Options) -> Options:
    # Started again it has the same name, so that it need not wait until the leases of the dead one run out.
    metrics, debug = _next(options.metrics, options.workers), _next_debug(options.debug, options.workers)
    return replace(options, metrics=metrics, debug=debug, workers=1, replica=secrets.token_hex(8))


def _next(address: Address, number: int) -> Address:
    """The address for process `number`; port 0 stays 0, the system chooses."""
    return Address(address.host, address.port + STRIDE * number if address.port else 0)


def _next_debug(debug: Address | Debug, number: int) -> Address | Debug:
    return _next(debug, number) if isinstance(debug, Address) else debug


async def _keep_running(
    job: ChildJob,
    configuration: Configuration,
    number: int,
    stop: asyncio.Event,
    patience_s: float,
    inlet: piped.Inlet | None,
) -> None:
    """Run a child, with what `configuration` says, until `stop`; then close its standard input, which tells it to stop,
    and wait for its drain.

    One that has not ended `patience_s` seconds later hangs, and is killed.
    """
    stopping = asyncio.create_task(stop.wait())
    loop = asyncio.get_running_loop()
    name = f"{job.role} {number}" if job.role is Role.SERVE else str(job.role)
    if job.role is Role.FOLLOW:
        await _until_needed(configuration, inlet, stopping)
    while not stop.is_set():
        again = loop.time() + RESTART_S
        child, tell = await _start(job, name, inlet)
        ended = asyncio.create_task(child.wait())
        tell(configuration.settings)
        with configuration.told(tell):
            await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            assert child.stdin is not None
            child.stdin.close()
            await asyncio.wait((ended,), timeout=patience_s)
            if not ended.done():
                _log.error("child `%s` hangs; killing it", name)
                child.kill()
            await ended
            return
        _log.error("child `%s` ended with status %d; starting it again", name, ended.result())
        await asyncio.wait((stopping,), timeout=max(0.0, again - loop.time()))


async def _until_needed(configuration: Configuration, inlet: piped.Inlet | None, stopping: asyncio.Task[bool]) -> None:
    """A follower is needed once there is a pool to follow, which an edited configuration may bring, and somebody who
    reads what it writes: a router that cannot start needs none."""
    followed = asyncio.Event()

    def look(settings: Settings) -> None:
        if any(pool.source is Source.EVENTS and pool.model_dir is not None for pool in settings.pools.values()):
            followed.set()

    look(configuration.settings)
    with configuration.told(look):
        for needed in (followed, *((inlet.open,) if inlet is not None else ())):
            waiting = asyncio.create_task(needed.wait())
            await asyncio.wait((waiting, stopping), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()


async def _start(
    job: ChildJob, name: str, inlet: piped.Inlet | None
) -> tuple[asyncio.subprocess.Process, Callable[[Settings], None]]:
    """The child, and how to tell it the settings for its job. Where it is to write to our own index, it inherits a
    pipe to us."""
    command = (sys.executable, "-m", "extproc.app.child", *name.split())
    with contextlib.ExitStack() as stack:
        inherited: tuple[int, ...] = ()
        if inlet is not None and job.role is Role.FOLLOW:
            pipe = stack.enter_context(inlet.new())
            inherited = (pipe.fileno(),)
            job = replace(job, options=replace(job.options, index=piped.url_of(pipe)))
        child = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, start_new_session=True, pass_fds=inherited
        )
        if inherited and inlet is not None:
            inlet.kill = child.kill
    return child, partial(_tell, child, job)


def _tell(child: asyncio.subprocess.Process, job: ChildJob, settings: Settings) -> None:
    """Give a child its job, or other settings for it. One that dies before it has read all is started again."""
    assert child.stdin is not None
    child.stdin.write(replace(job, settings=settings).packed())
