"""Following real publishers over real ZMQ: recorded bytes, lost batches, restarts, floods, garbage, a failing index."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from extproc.base import blocks, metrics
from extproc.base.errors import IndexLost, IndexUnavailable
from extproc.base.model import EventReport, Instance, Knowledge
from extproc.index import Change
from extproc.index.memory import MemoryIndex
from extproc.index.redis import RedisIndex
from extproc.kv_events import follower as events
from extproc.kv_events.follower import Follower
from extproc.prompts.tokenizer.vocabulary import Vocabulary
from tests.support import kv_recordings, paths
from tests.support.kv_publisher import Publisher
from tests.support.redis_server import RedisServer

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


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.load(paths.MODEL)


@pytest.fixture
def index() -> FailingIndex:
    return FailingIndex()


@pytest.fixture
async def follower(vocabulary: Vocabulary, index: FailingIndex) -> AsyncIterator[Follower]:
    follower = Follower(POOL, vocabulary, blocks.DEFAULT_SIZE, index)
    yield follower
    await follower.close()


@pytest.fixture
def publishers() -> Iterator[Callable[..., Publisher]]:
    """Makes publishers, and closes them."""
    made: list[Publisher] = []

    def make(*args: Any, **options: Any) -> Publisher:
        made.append(Publisher(*args, **options))
        return made[-1]

    yield make
    for publisher in made:
        publisher.close()


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


async def first_heard(follower: Follower, publisher: Publisher, payload: bytes) -> None:
    """Publish batches until one is heard: without replay nothing else tells when the subscription has taken effect."""
    while where(follower)[1] < 0:
        publisher.publish(payload)
        await asyncio.sleep(0.02)


def pack(*some: Any, timestamp: float = 0.0) -> bytes:
    return msgspec.msgpack.encode([timestamp, some, 0])


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


async def test_ranks_have_caches_of_their_own(
    follower: Follower, index: FailingIndex, publishers: Callable[..., Publisher]
) -> None:
    """Observation 11: the recorded ranks publish on their own ports; each is an instance with its own blocks."""
    lines = [line for line in kv_recordings.lines("0.32.0-dp2/P_dp2") if line["kind"] == "event"]
    ranks = [publishers(), publishers()]
    for line in lines:
        ranks[line["port"] - 5567].publish(bytes.fromhex(line["payload_hex"]))
    follower.follow(
        [Instance(NAME, rank, kv_events=one.events, kv_replay=one.replay) for rank, one in enumerate(ranks)]
    )
    for rank in range(2):
        name, last = f"{NAME}/{rank}", sum(line["port"] == 5567 + rank for line in lines) - 1
        await until(lambda name=name, last=last: where(follower, name) == (Knowledge.EXACT, last))
    sizes = await index.sizes(POOL)
    assert sizes.keys() == {f"{NAME}/0", f"{NAME}/1"}
    assert counted(metrics.EVENT_ERRORS, POOL, f"{NAME}/0", "rank") == 0


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
    monkeypatch.setattr(events, "INDEX_RETRY", 0.05)
    monkeypatch.setattr(events, "KEYS_AT_ONCE", 7)
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


async def test_an_index_that_lost_everything_is_told_everything(
    follower: Follower,
    index: FailingIndex,
    publishers: Callable[..., Publisher],
    vocabulary: Vocabulary,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A flushed Redis is noticed at the next report, even of an idle engine."""
    monkeypatch.setattr(events, "REPORT_EVERY", 0.05)
    publisher = publishers()
    follower.follow([instance(publisher)])
    publisher.publish(*RECORDED)
    await until(lambda: where(follower) == (Knowledge.EXACT, len(RECORDED) - 1))
    index.flush()
    index.report_error = IndexLost(POOL, frozenset({NAME, "somebody else"}))
    await asyncio.sleep(0.1)
    index.report_error = None
    await asyncio.sleep(0.1)
    await until(lambda: where(follower)[0] is Knowledge.EXACT)
    assert (await index.sizes(POOL))[NAME] == await truth(vocabulary, RECORDED)


async def test_a_real_redis_that_was_flushed_or_killed_is_filled_again(
    own_redis: RedisServer,
    vocabulary: Vocabulary,
    publishers: Callable[..., Publisher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of an idle engine too, within seconds, without asking it again."""
    monkeypatch.setattr(events, "REPORT_EVERY", 0.1)
    monkeypatch.setattr(events, "INDEX_RETRY", 0.1)
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


async def test_reports_reach_the_index_every_second(
    follower: Follower, index: FailingIndex, publishers: Callable[..., Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And an index that fails to take them ends nothing."""
    monkeypatch.setattr(events, "REPORT_EVERY", 0.02)
    index.report_error = IndexUnavailable("down")
    publisher = publishers()
    follower.follow([instance(publisher)])
    publisher.publish(RECORDED[0])
    await until(lambda: where(follower) == (Knowledge.EXACT, 0))
    index.report_error = RuntimeError("a bug")
    await asyncio.sleep(0.1)
    index.report_error = None
    await asyncio.sleep(0.1)
    assert await index.reports(POOL) == follower.reports()
    assert metrics.EVENT_STATE.labels(POOL, NAME, "exact")._value.get() == 1


async def test_a_bug_is_logged_and_the_instance_begins_anew(
    follower: Follower,
    index: FailingIndex,
    publishers: Callable[..., Publisher],
    vocabulary: Vocabulary,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is raised, following goes on from a fresh start."""
    monkeypatch.setattr(events, "RESTART", 0.05)
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


async def test_an_address_that_cannot_be_used_is_said_once(
    follower: Follower, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instance stays unknown; the others are not concerned."""
    monkeypatch.setattr(events, "RESTART", 0.01)
    follower.follow([Instance(NAME, kv_events="nonsense://")])
    await asyncio.sleep(0.2)
    assert where(follower) == (Knowledge.UNKNOWN, -1)
    assert len([record for record in caplog.records if "nonsense" in record.getMessage()]) == 1


async def test_following_follows_the_list(
    follower: Follower, index: FailingIndex, publishers: Callable[..., Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who leaves is forgotten in the index even if that is away; who is handed over is not; who returns begins anew."""
    monkeypatch.setattr(events, "INDEX_RETRY", 0.05)
    one, two, three = publishers(), publishers(), publishers()
    for publisher in (one, two, three):
        publisher.publish(*RECORDED[:3])
    everyone = [instance(one, "a:1"), instance(two, "b:1"), instance(three, "c:1")]
    follower.follow([*everyone, Instance("without-events:1")])
    assert follower.reports().keys() == {"a:1", "b:1", "c:1"}
    for name in ("a:1", "b:1", "c:1"):
        await until(lambda name=name: where(follower, name) == (Knowledge.EXACT, 2))
    index.error = IndexUnavailable("down")
    follower.follow(everyone[:1], handed_over={"c:1"})
    assert follower.reports().keys() == {"a:1"}
    await asyncio.sleep(0.1)
    index.error = None
    await asyncio.sleep(0.2)
    assert (await index.sizes(POOL)).keys() == {"a:1", "c:1"}
    assert ("b:1",) not in {labels[1:2] for labels in metrics.EVENT_STATE._metrics}
    index.error = IndexUnavailable("down")
    follower.follow([])
    follower.follow(everyone[:1])
    index.error = None
    await until(lambda: where(follower, "a:1") == (Knowledge.EXACT, 2))
    assert (await index.sizes(POOL))["a:1"] > 10


async def test_an_instance_that_moved_is_followed_where_it_is(
    follower: Follower, publishers: Callable[..., Publisher]
) -> None:
    """The same name with another address is another engine."""
    one, two = publishers(), publishers()
    one.publish(*RECORDED[:2])
    two.publish(*RECORDED[:9])
    follower.follow([instance(one)])
    await until(lambda: where(follower) == (Knowledge.EXACT, 1))
    follower.follow([instance(two)])
    await until(lambda: where(follower) == (Knowledge.EXACT, 8))


async def test_closing_leaves_no_task_behind(
    vocabulary: Vocabulary, index: FailingIndex, publishers: Callable[..., Publisher]
) -> None:
    """At any moment, also at once and twice; what the index holds stays."""
    publisher = publishers()
    publisher.publish(*RECORDED[:3])
    for pause in (0, 0.01, 0.3):
        follower = Follower(POOL, vocabulary, blocks.DEFAULT_SIZE, index)
        follower.follow(
            [instance(publisher), Instance("b:1", kv_events="tcp://127.0.0.1:1", kv_replay="tcp://127.0.0.1:1")]
        )
        await asyncio.sleep(pause)
        follower.follow([instance(publisher)])
        await follower.close()
        await follower.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
    assert (await index.sizes(POOL))[NAME] > 10


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
