"""The frames and addresses of real publishers, of all versions."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from extproc.base import metrics
from extproc.base.model import Instance, Knowledge
from extproc.kv_events import sockets, subscription
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


async def test_a_check_does_not_swallow_the_news_of_a_message(publishers: Callable[..., Publisher]) -> None:
    """ZMQ tells once that a message has come. Where the check hears it first, it says so, and nobody waits for ever."""
    publisher, woken, context = publishers(replay=None), asyncio.Event(), sockets.new_context()
    followed = sockets.Sockets(context, publisher.events, None)
    with context, followed.opened():
        while followed.connection() is not True:
            await asyncio.sleep(0.01)
        waiting = asyncio.create_task(followed.readable(woken, None))
        await asyncio.sleep(0.1)
        publisher.publish(RECORDED[0])
        time.sleep(0.3)  # the message has come, and the loop has not looked yet  # noqa: ASYNC251
        if followed.check():
            woken.set()
        await asyncio.wait_for(waiting, 5)
        assert followed.published() is not None


@asynccontextmanager
async def endless_publisher() -> AsyncIterator[str]:
    """Its address. It speaks ZMTP by hand: libzmq itself sends a message when all of it is there."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            writer.write(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
            await reader.readexactly(64)
            ready = b"\x05READY\x0bSocket-Type" + (3).to_bytes(4, "big") + b"PUB"
            writer.write(b"\x04" + bytes([len(ready)]) + ready)
            while True:
                writer.write(b"\x03" + (1 << 20).to_bytes(8, "big") + bytes(1 << 20))  # a long frame, and more to come
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much has come")
async def test_a_message_without_end_costs_its_sender_the_connection(
    follower: Follower, publishers: Callable[..., Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZMQ keeps the frames of a message until its last one has come, however many they are. The others are followed."""
    monkeypatch.setattr(sockets, "UNFINISHED", 2 << 20)
    monkeypatch.setattr(subscription, "RESTART", 60.0)
    honest = publishers()
    honest.publish(*RECORDED[:4])
    async with endless_publisher() as address:
        follower.follow([instance(honest), Instance("hostile", kv_events=address)])
        await until(lambda: where(follower) == (Knowledge.EXACT, 3))
        await until(lambda: counted(metrics.EVENT_ERRORS, POOL, "hostile", "socket") == 1)
    honest.publish(RECORDED[4])
    await until(lambda: where(follower) == (Knowledge.EXACT, 4))
