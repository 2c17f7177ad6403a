"""`python -m extproc.app.child ROLE [NUMBER]`: a child of `serve`. The words are for `ps`; its job comes by a pipe.

It stops when that pipe closes: then its parent stops it, or is gone, however that came.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Final

import uvloop

from extproc.app import log, log_writer, serve
from extproc.app.child_job import ChildJob, Role, next_job, receive
from extproc.app.configuration import Changes
from extproc.base.errors import ConfigError

_PIPE: Final = 0  # standard input
_log = logging.getLogger(__name__)


def main() -> int:
    """Do the job; returns the exit status."""
    try:
        job = receive(_PIPE)
    except EOFError:
        return 0
    except ConfigError as error:
        print(error, file=sys.stderr)  # noqa: T201 - as a command says it
        return 1
    log.configure(job.options.log_level)
    log_writer.start()
    try:
        uvloop.run(_run(job))
    except ConfigError as error:
        print(error, file=sys.stderr)  # noqa: T201 - as a command says it
        return 1
    return 0


async def _run(job: ChildJob) -> None:
    stop, changes = serve.stop_event(), Changes()
    hearing = asyncio.create_task(_hear(stop, changes), name="parent")
    try:
        if job.role is Role.FOLLOW:
            await serve.follow(job.settings, job.options, stop, changes)
        else:
            await serve.serve(job.settings, job.options, stop, changes)
    finally:
        hearing.cancel()


async def _hear(stop: asyncio.Event, changes: Changes) -> None:
    """Take over what the parent has, until its pipe closes: then stop."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(_PIPE, "rb", buffering=0))
    try:
        while True:
            job = await next_job(reader)
            try:
                await changes.offer(job.settings)
            except Exception:
                _log.exception("this process goes on with the configuration before")
    except (EOFError, ConfigError):
        stop.set()


if __name__ == "__main__":
    sys.exit(main())
