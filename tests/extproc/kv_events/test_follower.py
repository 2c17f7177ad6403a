"""Which instances are followed: they come, leave, move and are handed over, and the index hears where each stands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from prometheus_client import generate_latest

from extproc.base import blocks, metrics
from extproc.base.errors import IndexLost, IndexUnavailable
from extproc.base.model import Instance, Knowledge
from extproc.kv_events import follower as following
from extproc.kv_events import subscription
from extproc.kv_events.follower import Follower
from extproc.prompts.tokenizer.vocabulary import Vocabulary
from tests.support import kv_recordings
from tests.support.following import (
    NAME,
    POOL,
    RECORDED,
    FailingIndex,
    counted,
    instance,
    truth,
    until,
    where,
)
from tests.support.kv_publisher import Publisher


async def test_ranks_have_caches_of_their_own(
    follower: Follower, index: FailingIndex, publishers: Callable[..., Publisher]
) -> None:
    """Observation 11: the recorded ranks publish on their own ports; each is an instance with its own blocks."""
    heard = [each for each in kv_recordings.lines("0.32.0-dp2/P_dp2") if each["kind"] == "event"]
    ranks = [publishers(), publishers()]
    for each in heard:
        ranks[each["port"] - 5567].publish(bytes.fromhex(each["payload_hex"]))
    follower.follow(
        [Instance(NAME, rank, kv_events=one.events, kv_replay=one.replay) for rank, one in enumerate(ranks)]
    )
    for rank in range(2):
        name, last = f"{NAME}/{rank}", sum(each["port"] == 5567 + rank for each in heard) - 1
        await until(lambda name=name, last=last: where(follower, name) == (Knowledge.EXACT, last))
    sizes = await index.sizes(POOL)
    assert sizes.keys() == {f"{NAME}/0", f"{NAME}/1"}
    assert counted(metrics.EVENT_ERRORS, POOL, f"{NAME}/0", "rank") == 0


async def test_reports_reach_the_index_every_second(
    follower: Follower, index: FailingIndex, publishers: Callable[..., Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And an index that fails to take them ends nothing."""
    monkeypatch.setattr(following, "REPORT_EVERY", 0.02)
    index.report_error = IndexUnavailable("down")
    publisher = publishers()
    follower.follow([instance(publisher)])
    publisher.publish(RECORDED[0])
    await until(lambda: where(follower) == (Knowledge.EXACT, 0))
    index.report_error = RuntimeError("a bug")
    await asyncio.sleep(0.1)
    index.report_error = None
    await asyncio.sleep(0.1)
    reported, now = (await index.reports(POOL))[NAME], follower.reports()[NAME]
    assert (reported.state, reported.sequence, reported.lag_s) == (now.state, now.sequence, now.lag_s)
    assert reported.for_s <= now.for_s
    assert metrics.EVENT_STATE.labels(POOL, NAME, "exact")._value.get() == 1


async def test_following_follows_the_list(
    follower: Follower, index: FailingIndex, publishers: Callable[..., Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who leaves is forgotten in the index even if that is away; who is handed over is not; who returns begins anew."""
    monkeypatch.setattr(subscription, "INDEX_RETRY", 0.05)
    monkeypatch.setattr(following, "INDEX_RETRY", 0.05)
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


async def test_no_metric_of_an_instance_that_left_comes_back(
    follower: Follower, publishers: Callable[..., Publisher]
) -> None:
    """Where the follower hears a moment later than the process that an instance left, it was still showing it."""
    name = "gone:1"
    publisher = publishers()
    publisher.publish(*RECORDED[:3])
    follower.follow([instance(publisher, name)])
    await until(lambda: where(follower, name) == (Knowledge.EXACT, 2))
    metrics.forget_instance(POOL, name)
    publisher.publish(*RECORDED[3:5])
    await until(lambda: where(follower, name) == (Knowledge.EXACT, 4))
    assert name in generate_latest(metrics.REGISTRY).decode()
    follower.follow([])
    await until(lambda: name not in generate_latest(metrics.REGISTRY).decode())


async def test_reports_tell_how_long_nothing_came(follower: Follower, publishers: Callable[..., Publisher]) -> None:
    """The lag is of the newest event; how long ago that was, and how long the state has lasted, is told beside it."""
    publisher = publishers()
    follower.follow([instance(publisher)])
    await until(lambda: where(follower)[0] is Knowledge.EXACT)
    assert follower.reports()[NAME].silent_s is None
    publisher.publish(*RECORDED[:2])
    await until(lambda: where(follower) == (Knowledge.EXACT, 1))
    await until(lambda: (follower.reports()[NAME].silent_s or 0.0) > 0.2)
    before = follower.reports()[NAME]
    assert before.for_s >= 0.2
    publisher.publish(*RECORDED[2:3])
    await until(lambda: where(follower) == (Knowledge.EXACT, 2))
    now = follower.reports()[NAME]
    assert (now.silent_s or 0.0) < 0.2
    assert now.for_s > before.for_s, "the state is the same"


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


async def test_an_index_that_lost_everything_is_told_everything(
    follower: Follower,
    index: FailingIndex,
    publishers: Callable[..., Publisher],
    vocabulary: Vocabulary,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A flushed Redis is noticed at the next report, even of an idle engine."""
    monkeypatch.setattr(following, "REPORT_EVERY", 0.05)
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


async def test_another_secret(
    follower: Follower, index: FailingIndex, publishers: Callable[..., Publisher], vocabulary: Vocabulary
) -> None:
    """All that the engine can replay is indexed under other keys, nothing stays under the old ones, and routers hear
    that nothing they guessed counts."""
    publisher = publishers()
    publisher.publish(*RECORDED)
    last = Knowledge.EXACT, len(RECORDED) - 1
    follower.follow([instance(publisher)])
    await until(lambda: where(follower) == last)
    before, size = keys(index), await index.sizes(POOL)
    follower.begin_anew(b"another")
    assert where(follower)[0] is Knowledge.UNKNOWN
    await until(lambda: where(follower) == last)
    assert await index.sizes(POOL) == size == {NAME: len(before)}
    assert not before & keys(index)


def keys(index: FailingIndex) -> set[int]:
    """All that somebody holds."""
    blocks_of = index._pools[POOL]
    return {key for shard in blocks_of._shards for key in shard if blocks_of._holders(key)}
