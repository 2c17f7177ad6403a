"""What tests of following engines share: a recorded engine's batches, an index that fails, and what to wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from extproc.base import blocks
from extproc.base.model import EventReport, Instance, Knowledge
from extproc.index import Change
from extproc.index.memory import MemoryIndex
from extproc.kv_events.follower import Follower
from extproc.prompts.tokenizer.vocabulary import Vocabulary
from tests.support import kv_recordings
from tests.support.kv_publisher import Publisher

POOL = "pool"
NAME = "10.0.0.1:8000"
RECORDED = kv_recordings.payloads("0.32.0/A_agents")
EVICTING = kv_recordings.payloads("0.32.0/B_evict")


class FailingIndex(MemoryIndex):
    """The embedded index with faults to switch on."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.report_error: Exception | None = None
        self.delay = 0.0

    async def apply(self, changes: Sequence[Change]) -> None:
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.error is not None:
            raise self.error
        await super().apply(changes)

    async def report(self, pool: str, reports: Mapping[str, EventReport]) -> None:
        if self.report_error is not None:
            raise self.report_error
        await super().report(pool, reports)

    def flush(self) -> None:
        """Lose everything, without anybody being told."""
        self._pools.clear()


def instance(publisher: Publisher, name: str = NAME) -> Instance:
    return Instance(name, kv_events=publisher.events, kv_replay=publisher.replay)


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for a condition; fail where it never comes."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.005)


def where(follower: Follower, name: str = NAME) -> tuple[Knowledge, int]:
    report = follower.reports()[name]
    return report.state, report.sequence


def counted(counter: Any, *labels: str) -> float:
    value: float = counter.labels(*labels)._value.get()
    return value


async def truth(vocabulary: Vocabulary, payloads: Sequence[bytes]) -> int:
    """Prompt blocks that are held after these batches, by a follower that hears them all in peace."""
    index, publisher = MemoryIndex(), Publisher()
    follower = Follower(POOL, vocabulary, blocks.DEFAULT_SIZE, index)
    publisher.publish(*payloads)
    follower.follow([instance(publisher)])
    await until(lambda: where(follower) == (Knowledge.EXACT, len(payloads) - 1))
    await follower.close()
    publisher.close()
    return (await index.sizes(POOL)).get(NAME, 0)


async def first_heard(follower: Follower, publisher: Publisher, payload: bytes) -> None:
    """Publish batches until one is heard: without replay nothing else tells when the subscription has taken effect."""
    while where(follower)[1] < 0:
        publisher.publish(payload)
        await asyncio.sleep(0.02)


def pack(*some: Any, timestamp: float = 0.0) -> bytes:
    return msgspec.msgpack.encode([timestamp, some, 0])
