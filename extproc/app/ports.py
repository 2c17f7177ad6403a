"""Ports that a process is about to listen on, and whose last owner may still be there.

Whoever starts again beside a process that ends finds its ports taken for a moment. What is asked for is to serve, so
that moment is waited for; what only has connections left that end (TIME_WAIT) is free at once. Refuses to know who
listens.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Mapping
from typing import Final

from extproc.app.options import Address
from extproc.base.errors import ConfigError

_log = logging.getLogger(__name__)

PATIENCE_S: Final = 5.0  # a mistaken port is told after so long; a supervisor has not lost its patience by then
LOOK_S: Final = 0.1  # between two looks


async def free(addresses: Mapping[str, Address], patience_s: float = PATIENCE_S) -> None:
    """Wait until all of these are free, by the flags that name them. Raises ConfigError where one stays taken."""
    loop = asyncio.get_running_loop()
    until = loop.time() + patience_s
    for flag, address in addresses.items():
        said = False
        while _taken(address):
            if loop.time() >= until:
                raise ConfigError(f"{flag}: cannot listen on {address}; is another process there?")
            if not said:
                _log.warning("%s: %s is taken; waiting for it, at most %g s", flag, address, patience_s)
                said = True
            await asyncio.sleep(LOOK_S)


def _taken(address: Address) -> bool:
    """By a look of our own: gRPC finds out too, and prints a line of its own source about it."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        socket.create_server((address.host, address.port), family=family).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False
