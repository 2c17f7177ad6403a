"""Names are looked up beside the loop, once at a time."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from extproc.base.dns import look_up


async def test_lookups_are_shared_and_may_be_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name has one lookup at a time; who gave up is not told, who waits gets the answer or the error."""
    asked: list[str] = []
    answer = threading.Event()

    def getaddrinfo(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        answer.wait(20)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    waiting = [asyncio.create_task(look_up("redis")) for _ in range(10)]
    await asyncio.sleep(0)
    for task in waiting[:9]:
        task.cancel()
    await asyncio.wait(waiting[:9])
    answer.set()
    with pytest.raises(socket.gaierror):
        await waiting[9]
    assert asked == ["redis"]
