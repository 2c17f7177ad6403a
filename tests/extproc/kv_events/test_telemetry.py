"""What operators hear of an instance whose events cannot be used."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
import pytest

from extproc.base import metrics
from extproc.base.model import Knowledge
from extproc.kv_events.follower import Follower
from tests.support.following import (
    NAME,
    POOL,
    RECORDED,
    FailingIndex,
    counted,
    instance,
    pack,
    until,
    where,
)
from tests.support.kv_publisher import Publisher


async def test_garbage_is_counted_and_said_once(
    follower: Follower, index: FailingIndex, publishers: Callable[..., Publisher], caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a publisher sends, the follower goes on; each cause is logged once, and good batches count again."""
    name = "10.0.0.3:8000"
    publisher = publishers()
    follower.follow([instance(publisher, name)])
    await until(lambda: where(follower, name)[0] is Knowledge.EXACT)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            publisher.publish(b"", b"\xc1\xc1", msgspec.msgpack.encode({"no": "batch"}), bytes(9 * 1024 * 1024))
            publisher.send([b"one frame"])
            publisher.send([b"", b"short", RECORDED[0]])
            publisher.send([b"", b"\xff" * 8, RECORDED[0]])
            publisher.send([b"", bytes(8), b"", b"four frames"])
        publisher.publish(pack({"type": "AllBlocksCleared"}), *RECORDED[:5])
        await until(lambda: where(follower, name) == (Knowledge.EXACT, 3 * 4 + 6 - 1))
    assert (await index.sizes(POOL))[name] > 10
    causes = {"garbage": 6, "wrong_shape": 3, "oversized": 3, "frames": 6, "sequence": 6}
    assert {cause: counted(metrics.EVENT_ERRORS, POOL, name, cause) for cause in causes} == causes
    assert len([record for record in caplog.records if name in record.getMessage()]) == len(causes)


async def test_a_lost_connection_is_told_in_words(follower: Follower, caplog: pytest.LogCaptureFixture) -> None:
    """Losing an engine's events is a warning that says what it means; that there are none yet at the start is none."""
    publisher = Publisher()
    with caplog.at_level(logging.WARNING):
        follower.follow([instance(publisher)])
        publisher.publish(*RECORDED[:3])
        await until(lambda: where(follower) == (Knowledge.EXACT, 2))
        assert not caplog.records
        publisher.close()
        await until(lambda: where(follower)[0] is Knowledge.UNKNOWN)
        await until(lambda: bool(caplog.records))
    (record,) = caplog.records
    assert f"instance {NAME}, pool {POOL}: the connection to its events is lost; its cache" in record.getMessage()


async def test_no_lag_is_shown_of_a_connection_that_is_lost(follower: Follower) -> None:
    """The lag of the last batch would look well for as long as the engine is away."""
    publisher = Publisher()
    follower.follow([instance(publisher)])
    publisher.publish(*RECORDED[:3])
    await until(lambda: (POOL, NAME) in metrics.EVENT_LAG_SECONDS._metrics)
    publisher.close()
    await until(lambda: (POOL, NAME) not in metrics.EVENT_LAG_SECONDS._metrics)
    assert counted(metrics.EVENTS_CONNECTED, POOL, NAME) == 0
