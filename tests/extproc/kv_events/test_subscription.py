"""Following one real publisher over ZMQ: recorded bytes, lost batches, restarts, floods, a failing index."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest

from extproc.base import blocks, metrics
from extproc.base.errors import IndexUnavailable
from extproc.base.model import Knowledge
from extproc.index.redis import RedisIndex
from extproc.kv_events import follower as following
from extproc.kv_events import subscription
from extproc.kv_events.follower import Follower
from extproc.kv_events.replay_turns import ReplayTurns
from extproc.prompts.tokenizer.vocabulary import Vocabulary
from tests.support.following import (
    EVICTING,
    NAME,
    POOL,
    RECORDED,
    FailingIndex,
    counted,
    first_heard,
    instance,
    pack,
    truth,
    until,
    where,
)
from tests.support.kv_publisher import Publisher
from tests.support.redis_server import RedisServer


async def test_recorded_events_arrive_in_the_index(
    follower: Follower, index: FailingIndex, publishers: Callable[..., Publisher], vocabulary: Vocabulary
) -> None:
    """A late joiner replays what was, then follows; the index holds what one from the first batch on would."""
    publisher = publishers()
    publisher.publish(*RECORDED[:20])
    follower.follow([instance(publisher)])
    await until(lambda: where(follower) == (Knowledge.EXACT, 19))
    publisher.publish(*RECORDED[20:])
    await until(lambda: where(follower) == (Knowledge.EXACT, len(RECORDED) - 1))
    assert (await index.sizes(POOL))[NAME] == await truth(vocabulary, RECORDED) > 100
    assert publisher.asked[0] == 0


async def test_lost_batches_are_replayed(
    follower: Follower, index: FailingIndex, publishers: Callable[..., Publisher], vocabulary: Vocabulary
) -> None:
    """The network drops some; the gap closes and nothing is forgotten."""
    publisher = publishers()
    follower.follow([instance(publisher, "10.0.0.2:8000")])
    await until(lambda: where(follower, "10.0.0.2:8000")[0] is Knowledge.EXACT)
    publisher.publish(*EVICTING[:10])
    publisher.lose(*EVICTING[10:30])
    publisher.publish(*EVICTING[30:])
    await until(lambda: where(follower, "10.0.0.2:8000") == (Knowledge.EXACT, len(EVICTING) - 1))
    assert (await index.sizes(POOL))["10.0.0.2:8000"] == await truth(vocabulary, EVICTING)
    assert counted(metrics.EVENT_GAPS, POOL, "10.0.0.2:8000", "replayed") == 1
    assert 10 in publisher.asked


async def test_a_gap_without_replay_makes_the_instance_unknown(
    follower: Follower, index: FailingIndex, publishers: Callable[..., Publisher]
) -> None:
    """Nothing of what was known before it stays."""
    publisher = publishers(replay=None)
    follower.follow([instance(publisher)])
    await first_heard(follower, publisher, RECORDED[0])
    publisher.publish(*RECORDED[1:10])
    await until(lambda: where(follower)[1] == publisher.next - 1)
    assert (await index.sizes(POOL))[NAME] > 20
    publisher.lose(RECORDED[10])
    publisher.publish(pack())
    await until(lambda: where(follower) == (Knowledge.UNKNOWN, publisher.next - 1))
    assert await index.sizes(POOL) == {}


async def test_a_killed_engine_is_forgotten_and_its_successor_followed(
    follower: Follower, index: FailingIndex, publishers: Callable[..., Publisher], vocabulary: Vocabulary
) -> None:
    """While it is away the instance is unknown and holds nothing; the new one is replayed from its beginning."""
    publisher = Publisher()
    publisher.publish(*RECORDED)
    follower.follow([instance(publisher)])
    await until(lambda: where(follower) == (Knowledge.EXACT, len(RECORDED) - 1))
    publisher.close()
    await until(lambda: where(follower) == (Knowledge.UNKNOWN, -1))
    await asyncio.sleep(0.05)
    assert await index.sizes(POOL) == {}
    successor = publishers(publisher.events, publisher.replay)
    successor.publish(*RECORDED[:3])
    await until(lambda: where(follower) == (Knowledge.EXACT, 2))
    assert (await index.sizes(POOL))[NAME] == await truth(vocabulary, RECORDED[:3])


async def test_an_engine_that_never_answers_replays(
    follower: Follower, index: FailingIndex, publishers: Callable[..., Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is followed all the same; what is known of it is a part, and says so."""
    monkeypatch.setattr("extproc.kv_events.continuity.REPLAY_TIMEOUT", 0.2)
    publisher = publishers(answers=False)
    publisher.publish(*RECORDED[:3])
    follower.follow([instance(publisher)])
    await until(lambda: where(follower)[0] is Knowledge.RECOVERING)
    await until(lambda: where(follower)[0] is Knowledge.UNKNOWN)
    publisher.publish(RECORDED[0])
    await until(lambda: where(follower) == (Knowledge.UNKNOWN, 3))
    assert (await index.sizes(POOL))[NAME] > 10


async def test_many_engines_are_asked_in_turn(
    follower: Follower, publishers: Callable[..., Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many start at once, few sockets for replays are open; all are known in the end, and those that never
    answer hold up the others only for a while."""
    monkeypatch.setattr("extproc.kv_events.continuity.REPLAY_TIMEOUT", 0.2)
    monkeypatch.setattr("extproc.kv_events.replay_turns.KEPT_S", 0.2)
    monkeypatch.setattr(subscription, "TURN", 0.1)
    follower._setup = replace(follower._setup, replays=ReplayTurns(2))
    engines = {f"10.0.0.{number}:8000": publishers(answers=number % 3 > 0) for number in range(9)}
    for publisher in engines.values():
        publisher.publish(*RECORDED[:3])
    most = 0

    def settled() -> bool:
        nonlocal most
        open_now = [one for one in follower._subscriptions.values() if one._sockets._replay is not None]
        most = max(most, len(open_now))
        return all(
            where(follower, name) == ((Knowledge.EXACT, 2) if publisher._answers else (Knowledge.UNKNOWN, -1))
            for name, publisher in engines.items()
        )

    follower.follow([instance(publisher, name) for name, publisher in engines.items()])
    await until(settled)
    assert most <= 3, "one whose turn has just ended may still have to close"


async def test_an_engine_with_a_short_memory(
    follower: Follower, index: FailingIndex, publishers: Callable[..., Publisher]
) -> None:
    """Its replay does not reach back to its first batch: unknown, until a clear makes up for it."""
    publisher = publishers(remembers=2)
    publisher.publish(*RECORDED[:10])
    follower.follow([instance(publisher)])
    await until(lambda: where(follower) == (Knowledge.UNKNOWN, 9))
    publisher.publish(pack({"type": "AllBlocksCleared"}), RECORDED[0])
    await until(lambda: where(follower) == (Knowledge.EXACT, 11))
    assert (await index.sizes(POOL))[NAME] > 10


async def test_a_flood_neither_stops_decisions_nor_fills_memory(
    follower: Follower, index: FailingIndex, publishers: Callable[..., Publisher]
) -> None:
    """Others get their turn all the time; what is dropped on the way is a gap like any other."""
    publisher = publishers()
    follower.follow([instance(publisher)])
    await until(lambda: where(follower)[0] is Knowledge.EXACT)
    big = pack({
        "type": "BlockStored", "block_hashes": list(range(1, 513)), "parent_block_hash": None,
        "token_ids": [300] * 16 * 512, "block_size": 16,
    })  # fmt: skip
    rounds = 40
    for _ in range(rounds):
        publisher.publish(big, *EVICTING)
    turns = 0
    while where(follower) != (Knowledge.EXACT, rounds * (len(EVICTING) + 1) - 1):
        await asyncio.sleep(0)
        turns += 1
    assert turns > 20


async def test_a_slow_index_delays_but_loses_nothing(
    follower: Follower, index: FailingIndex, publishers: Callable[..., Publisher], vocabulary: Vocabulary
) -> None:
    """What waits, waits in the sockets and at the engine."""
    index.delay = 0.03
    publisher = publishers()
    follower.follow([instance(publisher)])
    publisher.publish(*EVICTING)
    await until(lambda: where(follower) == (Knowledge.EXACT, len(EVICTING) - 1))
    await asyncio.sleep(0.1)
    assert (await index.sizes(POOL))[NAME] == await truth(vocabulary, EVICTING)


async def test_an_index_that_was_away_is_told_everything(
    follower: Follower,
    index: FailingIndex,
    publishers: Callable[..., Publisher],
    vocabulary: Vocabulary,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unknown while it is away; then right again, without asking the engine, whatever happened meanwhile."""
    monkeypatch.setattr(subscription, "INDEX_RETRY", 0.05)
    monkeypatch.setattr(subscription, "KEYS_AT_ONCE", 7)
    publisher = publishers()
    follower.follow([instance(publisher)])
    publisher.publish(*EVICTING[:20])
    await until(lambda: where(follower) == (Knowledge.EXACT, 19))
    index.error = IndexUnavailable("down")
    publisher.publish(*EVICTING[20:])
    await until(lambda: where(follower) == (Knowledge.UNKNOWN, len(EVICTING) - 1))
    await asyncio.sleep(0.2)
    asked = list(publisher.asked)
    index.error = None
    await until(lambda: where(follower)[0] is Knowledge.EXACT)
    assert (await index.sizes(POOL))[NAME] == await truth(vocabulary, EVICTING)
    assert [start for start in publisher.asked if start == 0] == [start for start in asked if start == 0]


async def test_a_real_redis_that_was_flushed_or_killed_is_filled_again(
    own_redis: RedisServer,
    vocabulary: Vocabulary,
    publishers: Callable[..., Publisher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of an idle engine too, within seconds, without asking it again."""
    monkeypatch.setattr(following, "REPORT_EVERY", 0.1)
    monkeypatch.setattr(subscription, "INDEX_RETRY", 0.1)
    redis = RedisIndex.from_url(own_redis.url)
    follower = Follower(POOL, vocabulary, blocks.DEFAULT_SIZE, redis)
    publisher = publishers()
    publisher.publish(*RECORDED)
    follower.follow([instance(publisher)])
    expected = {NAME: await truth(vocabulary, RECORDED)}

    async def held() -> Mapping[str, int]:
        with suppress(IndexUnavailable):
            return await redis.sizes(POOL)
        return {}

    async def filled() -> None:
        deadline = time.monotonic() + 20
        while await held() != expected or where(follower) != (Knowledge.EXACT, len(RECORDED) - 1):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)

    await filled()
    own_redis.send("FLUSHALL")
    assert await held() == {}
    await filled()
    own_redis.stop()
    await asyncio.sleep(0.3)
    own_redis.start()
    await filled()
    assert publisher.asked.count(0) == 1
    await follower.close()
    await redis.close()


async def test_a_bug_is_logged_and_the_instance_begins_anew(
    follower: Follower,
    index: FailingIndex,
    publishers: Callable[..., Publisher],
    vocabulary: Vocabulary,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is raised, following goes on from a fresh start."""
    monkeypatch.setattr(subscription, "RESTART", 0.05)
    bugs = itertools.count()
    decode = vocabulary.decode

    def buggy(tokens: Sequence[int]) -> bytes:
        if next(bugs) == 40:
            raise ZeroDivisionError("a bug")
        return decode(tokens)

    monkeypatch.setattr(vocabulary, "decode", buggy)
    before = counted(metrics.EXCEPTIONS, "events")
    publisher = publishers()
    publisher.publish(*RECORDED)
    follower.follow([instance(publisher)])
    await until(lambda: counted(metrics.EXCEPTIONS, "events") == before + 1)
    await until(lambda: where(follower) == (Knowledge.EXACT, len(RECORDED) - 1))
    monkeypatch.undo()
    assert (await index.sizes(POOL))[NAME] == await truth(vocabulary, RECORDED)
    assert "ZeroDivisionError" in caplog.text
