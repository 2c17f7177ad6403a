"""Host names to addresses, in threads that nothing waits for.

The event loop's own `getaddrinfo` does not suit a resolver that is slow or away: it has few threads, the process waits
for them when it ends, and a failure that comes after the caller gave up is logged as an error. Here each name has one
thread at a time, however many callers, and that thread ends with the process.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress

_Asker = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Sequence[str]]"]

_askers: dict[str, list[_Asker]] = {}  # of the names that are being looked up
_lock = threading.Lock()


async def look_up(host: str) -> Sequence[str]:
    """Every address of a name, as text. Raises socket.gaierror, and UnicodeError where it is no name at all.

    It may take as long as the system's resolver needs; a caller may give up at any moment.
    """
    loop = asyncio.get_running_loop()
    asker: _Asker = (loop, loop.create_future())
    with _lock:
        first = host not in _askers
        _askers.setdefault(host, []).append(asker)
    if first:
        threading.Thread(target=_ask, args=(host,), name=f"look up {host}", daemon=True).start()
    try:
        return await asker[1]
    finally:
        with _lock, suppress(KeyError, ValueError):
            _askers[host].remove(asker)


def _ask(host: str) -> None:
    answer: Sequence[str] | Exception
    try:
        answer = [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError) as error:
        answer = error
    with _lock:
        askers = _askers.pop(host)
    for loop, future in askers:
        with suppress(RuntimeError):  # a loop that is closed
            loop.call_soon_threadsafe(_settle, future, answer)


def _settle(future: asyncio.Future[Sequence[str]], answer: Sequence[str] | Exception) -> None:
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
