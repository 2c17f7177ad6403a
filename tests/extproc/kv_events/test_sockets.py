"""The frames and addresses of real publishers, of all versions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from extproc.base.model import Instance, Knowledge
from extproc.kv_events import subscription
from extproc.kv_events.follower import Follower
from tests.support.following import (
    NAME,
    POOL,
    RECORDED,
    FailingIndex,
    instance,
    pack,
    until,
    where,
)
from tests.support.kv_publisher import Publisher


@pytest.mark.parametrize("topic", [b"", b"kv@127.0.0.1:8120@tiny"])
@pytest.mark.parametrize("topic_in_replay", [False, True])
async def test_topics_and_replay_frames_of_all_versions(
    topic: bytes, topic_in_replay: bool, follower: Follower, publishers: Callable[..., Publisher]
) -> None:
    """Whatever the topic, and whether a replay repeats it or not."""
    publisher = publishers(topic=topic, topic_in_replay=topic_in_replay)
    publisher.publish(*RECORDED[:5])
    follower.follow([instance(publisher)])
    await until(lambda: where(follower) == (Knowledge.EXACT, 4))
    publisher.publish(RECORDED[5])
    await until(lambda: where(follower) == (Knowledge.EXACT, 5))


async def test_a_whole_replay_buffer_arrives(follower: Follower, publishers: Callable[..., Publisher]) -> None:
    """Ten thousand batches at once are more than a ROUTER's queue: what it drops on the way is asked for again."""
    publisher = publishers()
    publisher.publish(*(pack(timestamp=float(number)) for number in range(10_000)))
    follower.follow([instance(publisher)])
    await until(lambda: where(follower) == (Knowledge.EXACT, 9_999))


async def test_an_engine_that_connects_to_us(
    follower: Follower, index: FailingIndex, publishers: Callable[..., Publisher]
) -> None:
    """An address with the host `*` is bound; an engine that connects begins like one that we connect to."""
    probe = Publisher(replay=None)
    port = probe.events.rpartition(":")[2]
    probe.close()
    publisher = publishers(f"tcp://localhost:{port}")
    publisher.publish(*RECORDED[:4])
    follower.follow([Instance(NAME, kv_events=f"tcp://*:{port}", kv_replay=publisher.replay)])
    await until(lambda: where(follower) == (Knowledge.EXACT, 3))
    publisher.publish(RECORDED[4])
    await until(lambda: where(follower) == (Knowledge.EXACT, 4))
    assert (await index.sizes(POOL))[NAME] > 10


async def test_an_address_that_cannot_be_used_is_said_once(
    follower: Follower, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instance stays unknown; the others are not concerned."""
    monkeypatch.setattr(subscription, "RESTART", 0.01)
    follower.follow([Instance(NAME, kv_events="nonsense://")])
    await asyncio.sleep(0.2)
    assert where(follower) == (Knowledge.UNKNOWN, -1)
    assert len([record for record in caplog.records if "nonsense" in record.getMessage()]) == 1
