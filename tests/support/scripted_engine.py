"""An engine and its sockets as a script: the following of one engine without ZMQ, without a clock and without a loop.

`followed` puts the sockets in the place of the real ones; everything behind them, from the line to the index and the
facts, is the product's own.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest

from extproc.base import blocks
from extproc.base.facts import Fact
from extproc.base.model import Instance
from extproc.index import Index
from extproc.kv_events import subscription
from extproc.kv_events.engines import frames, vllm
from extproc.kv_events.mirror import Mirror, Vocabulary
from extproc.kv_events.subscription import Setup, Subscription

BIG = (-1).to_bytes(8, "big", signed=True)


class ScriptedEngine:
    """Numbers its batches and replays what it remembers, as a publisher does."""

    bound = False

    def __init__(self, remembers: int = 10_000) -> None:
        self._remembered: deque[tuple[int, bytes]] = deque(maxlen=remembers)
        self._number = 0
        self._connected = True
        self._news: deque[bool] = deque([True])
        self._live: deque[list[bytes]] = deque()
        self._replay: deque[list[bytes]] = deque()

    # What happens

    def publish(self, payload: bytes, *, heard: bool = True) -> None:
        """A batch; the network may lose it."""
        self._remembered.append((self._number, payload))
        if heard and self._connected:
            self._live.append([b"", self._number.to_bytes(8, "big"), payload])
        self._number += 1

    def disconnect(self) -> None:
        """The connection ends; what is published until the next one is not heard."""
        self._connected = False
        self._news.append(False)

    def connect(self) -> None:
        """There is a connection again."""
        self._connected = True
        self._news.append(True)

    def restart(self) -> None:
        """Another process at the same address, whose cache is empty and whose numbers begin again."""
        self._remembered.clear()
        self._number = 0

    # What a line asks of `Sockets`

    def connection(self) -> bool | None:
        return self._news.popleft() if self._news else None

    def published(self) -> list[bytes] | None:
        return self._live.popleft() if self._live else None

    def replayed(self) -> list[bytes] | None:
        return self._replay.popleft() if self._replay else None

    def ask(self, request: Sequence[bytes]) -> None:
        start = int.from_bytes(request[1], "big")
        self._replay = deque(
            [b"", b"", number.to_bytes(8, "big"), payload] for number, payload in self._remembered if number >= start
        )
        self._replay.append([b"", b"", BIG, b""])
        assert frames.replayed(self._replay[-1]).sequence == frames.END

    def end_replay(self) -> None:
        self._replay.clear()


class Followed:
    """One engine, and the line that follows it."""

    def __init__(self, engine: ScriptedEngine, one: Subscription) -> None:
        self.engine = engine
        self.line = one

    async def catch_up(self) -> None:
        """Let everything happen that follows from what has come."""
        for _ in range(2):  # the index is told in the first round, and its routers at the latest in the second
            self.line._work(math.inf)
            await self.line._tell()


@contextmanager
def followed(
    instance: Instance,
    engine: ScriptedEngine,
    index: Index,
    vocabulary: Vocabulary,
    tell: Callable[[str, Fact], None],
    now: Callable[[], float],
    pool: str = "pool",
) -> Iterator[Followed]:
    """Follow a scripted engine; `now` is the only clock."""
    setup = Setup(
        pool=pool,
        index=index,
        decode=vllm.decode,
        new_mirror=lambda: Mirror(pool, vocabulary, blocks.DEFAULT_SIZE),
        context=cast(Any, None),
        tell=tell,
        turn=asyncio.Lock(),
        clock=now,
        wall_clock=now,
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(subscription, "Sockets", lambda *_: engine)
        one = Subscription(instance, setup)
    yield Followed(engine, one)
    one.remove_metrics()
