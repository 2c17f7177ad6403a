"""`python -m extproc.app.child ROLE [NUMBER]`: a child of `serve`. The words are for `ps`; its errand comes by a pipe.

It stops when that pipe closes: then its parent stops it, or is gone, however that came.
"""

from __future__ import annotations

import sys
from typing import Final

import uvloop

from extproc.app import log, serve
from extproc.app.errand import Errand, Role, receive
from extproc.base.errors import ConfigError

_PIPE: Final = 0  # standard input


def main() -> int:
    """Do the errand; returns the exit status."""
    try:
        errand = receive(_PIPE)
    except EOFError:
        return 0
    except ConfigError as error:
        print(error, file=sys.stderr)  # noqa: T201 - as a command says it
        return 1
    log.configure(errand.options.log_level)
    try:
        uvloop.run(_run(errand))
    except ConfigError as error:
        print(error, file=sys.stderr)  # noqa: T201 - as a command says it
        return 1
    return 0


async def _run(errand: Errand) -> None:
    stop = serve.stop_event(parent=_PIPE)
    if errand.role is Role.FOLLOW:
        await serve.follow(errand.settings, errand.options, stop)
    else:
        await serve.serve(errand.settings, errand.options, stop, follow=False)


if __name__ == "__main__":
    sys.exit(main())
