"""`python -m extproc.app.child ROLE [NUMBER]`: a child of `serve`. The words are for `ps`; its job comes by a pipe.

It stops when that pipe closes: then its parent stops it, or is gone, however that came.
"""

from __future__ import annotations

import sys
from typing import Final

import uvloop

from extproc.app import log, serve
from extproc.app.child_job import ChildJob, Role, receive
from extproc.base.errors import ConfigError

_PIPE: Final = 0  # standard input


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
    try:
        uvloop.run(_run(job))
    except ConfigError as error:
        print(error, file=sys.stderr)  # noqa: T201 - as a command says it
        return 1
    return 0


async def _run(job: ChildJob) -> None:
    stop = serve.stop_event(parent=_PIPE)
    if job.role is Role.FOLLOW:
        await serve.follow(job.settings, job.options, stop)
    else:
        await serve.serve(job.settings, job.options, stop, follow=False)


if __name__ == "__main__":
    sys.exit(main())
