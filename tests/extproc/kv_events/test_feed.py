"""A feed between an engine and a bad line: whatever gets lost, it knows the truth or says that it does not."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.base.errors import UnknownToken
from extproc.base.model import Knowledge
from extproc.kv_events.engines import Batch, Tier, vllm
from extproc.kv_events.feed import Feed
from extproc.kv_events.mirror import Mirror
from extproc.kv_events.removals import Removals
from tests.support.plain_cache import POOL, SIZE, PlainCache, Text


def stored(*blocks: int, parent: int | None = None, **more: Any) -> dict[str, Any]:
    event = {"type": "BlockStored", "block_hashes": blocks, "parent_block_hash": parent, "block_size": 2}
    return event | {"token_ids": [token for block in blocks for token in (5, block % 3)]} | more


def removed(*blocks: int) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": blocks, "medium": "GPU"}


CLEARED = {"type": "AllBlocksCleared"}


def pack(*events: Any, timestamp: float = 0, rank: int | None = None) -> bytes:
    return msgspec.msgpack.encode([timestamp, events, rank])


def message(sequence: int, payload: bytes) -> list[bytes]:
    return [b"", sequence.to_bytes(8, "big"), payload]


def feed(*, can_replay: bool = True, rank: int | None = None) -> Feed:
    return Feed(vllm.decode, Mirror(POOL, Text(), SIZE), rank=rank, can_replay=can_replay)


def work(feed: Feed, wall_clock: float = 0) -> None:
    while feed.step(wall_clock):
        pass


# Any line


class Engine:
    """An engine whose cache is the plain model, and its publisher with a short memory."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.caches = (PlainCache(), PlainCache(drops=False))  # the truth lies between them
        self.next = 0
        self.remembered: deque[tuple[int, bytes]] = deque(maxlen=4)
        self.truth: dict[bytes, tuple[set[int], ...]] = {}  # keys held after each batch

    def publish(self, *events: dict[str, Any], broken: bool = False) -> list[bytes]:
        payload = pack(*events, timestamp=1000 * self.incarnation + self.next)
        for event in vllm.decode(payload).events:
            for cache in self.caches:
                cache.apply(event)
        if broken:
            payload = b"\xc1" + payload
        self.truth[payload] = tuple(cache.keys() for cache in self.caches)
        self.remembered.append((self.next, payload))
        self.next += 1
        return message(self.next - 1, payload)


CHAINS = [stored(1, 2, 3, 4), stored(1, 2), stored(7, 8, parent=2), stored(11, 12, 13), stored(14, parent=13)]
STEPS = [
    *(4 * ["heard"]), *(3 * ["answer"]), *(2 * ["lost"]), "twice", "late", "garbage", "starts over", "restart",
    "reconnect", "wait", "clear",
]  # fmt: skip


@patch.object(Removals, "shows_last_only", lambda *_: False)  # this engine announces each copy
@settings(deadline=None, max_examples=400)
@given(
    st.booleans(),
    st.lists(
        st.tuples(st.sampled_from(STEPS), st.sampled_from([*CHAINS, *(removed(block) for block in (2, 4, 8, 13, 14))])),
        min_size=5,
        max_size=40,
    ),
)
def test_exact_means_exact_and_everything_else_is_part_of_the_truth(
    can_replay: bool, steps: list[tuple[str, dict[str, Any]]]
) -> None:
    """Any interleaving of lost, doubled, late and broken batches, of restarts, reconnections and answers."""
    opened: list[bytes] = []

    def decode(payload: bytes) -> Batch:
        opened.append(payload)
        return vllm.decode(payload)

    subject = Feed(decode, Mirror(POOL, Text(), SIZE), rank=None, can_replay=can_replay)
    engines = [Engine(0)]
    now, told, late = 0.0, set[int](), list[list[bytes]]()

    def check() -> None:
        work(subject)
        delta = subject.drain()
        if delta.forget:
            told.clear()
        told.difference_update(delta.remove)
        told.update(delta.add)
        if subject.sequence < 0:
            assert not told
            return
        ((least, most),) = (engine.truth[opened[-1]] for engine in engines if opened[-1] in engine.truth)
        if subject.knowledge is Knowledge.EXACT:
            assert least <= told <= most
        elif subject.knowledge is Knowledge.UNKNOWN:
            assert told <= most

    subject.connected(now)
    check()
    for step, event in steps:
        engine = engines[-1]
        match step:
            case "heard":
                subject.heard(engine.publish(event), now)
            case "lost":
                engine.publish(event)
            case "twice":
                for _ in range(2):
                    subject.heard(engine.publish(event) if _ == 0 else message(*engine.remembered[-1]), now)
            case "late":
                late.append(engine.publish(event))
            case "garbage":
                subject.heard(engine.publish(event, broken=True), now)
            case "clear":
                subject.heard(engine.publish(CLEARED, event), now)
            case "starts over":  # and its first batch is heard
                engines.append(Engine(len(engines)))
                late.clear()
                subject.heard(engines[-1].publish(event), now)
            case "restart" | "reconnect":
                subject.disconnected(now)
                check()
                if step == "restart":
                    engines.append(Engine(len(engines)))
                    late.clear()
                subject.connected(now)
            case "answer":
                while late:
                    subject.heard(late.pop(), now)
                check()
                while subject.replay is not None:
                    start, subject.replay = subject.replay, None
                    for number, payload in engine.remembered:
                        if number >= start:
                            subject.replayed(message(number, payload), now)
                            check()
                    subject.replayed([b"", b"", b"\xff" * 8, b""], now)
                    check()
            case "wait":
                now += 31
                subject.tick(now)
        check()


# Promises, one by one


def live(*payloads: bytes, can_replay: bool = False, rank: int | None = None) -> Feed:
    """A feed that has heard these batches from the first on."""
    subject = feed(can_replay=can_replay, rank=rank)
    subject.connected(0)
    for sequence, payload in enumerate(payloads):
        subject.heard(message(sequence, payload), 0)
        work(subject, wall_clock=1000.5)
    return subject


def causes(subject: Feed) -> list[str]:
    return [trouble.cause for trouble in subject.troubles]


def test_what_is_heard_is_told() -> None:
    """From frames to keys, and what an operator may want to know of it."""
    subject = live(pack(stored(1, 2), removed(2), timestamp=1000.0), pack(CLEARED, stored(3), timestamp=1000.25))
    delta = subject.drain()
    assert delta.forget
    assert len(delta.add) == 1
    assert (subject.sequence, subject.lag, subject.knowledge) == (1, 0.25, Knowledge.EXACT)
    assert subject.events == {"stored": 2, "removed": 1, "cleared": 1}
    assert subject.blocks == {("stored", Tier.GPU): 3, ("removed", Tier.GPU): 1}
    assert subject.troubles == []


def test_other_tiers_are_counted_only() -> None:
    """CPU and STORAGE blocks show in the counters and nowhere else."""
    subject = live(pack(stored(1, 2, medium="CPU"), stored(3, medium="STORAGE")))
    assert subject.drain().add == []
    assert subject.blocks == {("stored", Tier.CPU): 2, ("stored", Tier.STORAGE): 1}


def test_a_huge_event_is_applied_in_pieces() -> None:
    """No step takes more than a number of blocks, and together they are the event."""
    subject = live(pack(stored(*range(1, 1001))))
    assert subject.blocks["stored", Tier.GPU] == 1000
    assert subject.events["stored"] > 5
    assert len(subject.drain().add) > 1000


def test_a_payload_of_many_events_is_read_one_by_one() -> None:
    """No step decodes or applies more than one of them, however many there are, and whatever they are."""
    subject = feed()
    subject.connected(0)
    work(subject)
    subject.replayed([b"", b"\xff" * 8, b""], 0)
    subject.heard(message(0, pack(*(stored(block) for block in range(1, 2001)), *(2000 * [{"type": "BlockMoved"}]))), 0)
    steps = 0
    while subject.step(0):
        steps += 1
    assert steps > 4000
    assert subject.blocks["stored", Tier.GPU] == 2000
    assert [trouble.times for trouble in subject.troubles] == [2000]


def test_a_payload_that_breaks_off_in_the_middle_is_lost_whole() -> None:
    """What was applied of it is forgotten with all the rest."""
    broken = pack(stored(1, 2), stored(3, parent=2) | {"block_hashes": "x"}, stored(4))
    subject = live(pack(stored(7, 8)), broken)
    assert causes(subject) == ["wrong_shape"]
    assert subject.drain().add == []
    assert subject.knowledge is Knowledge.UNKNOWN


def test_a_payload_that_cannot_be_used_makes_the_instance_unknown() -> None:
    """It may have removed anything; so all is forgotten, until a clear."""
    subject = live(pack(stored(1, 2)), b"\xc1", pack(stored(1, 2)))
    assert causes(subject) == ["garbage"]
    assert subject.knowledge is Knowledge.UNKNOWN
    assert len(subject.drain().add) == 2
    subject.heard(message(3, pack(CLEARED)), 0)
    work(subject)
    assert subject.knowledge is Knowledge.EXACT


def test_a_contradiction_makes_the_instance_unknown() -> None:
    """A hash in two places, as of an engine that does not chain its hashes."""
    subject = live(pack(stored(1, 2)), pack(stored(3), stored(2, parent=3)))
    assert causes(subject) == ["contradiction"]
    assert subject.knowledge is Knowledge.UNKNOWN
    assert subject.drain().add == []


def test_messages_without_a_usable_number_are_counted_and_missed() -> None:
    """A wrong frame count or number is no batch; if it was one, its number shows the gap."""
    subject = live(pack(stored(1)), can_replay=True)
    for broken in ([b""], [b"", b"1", b""], [b"", b"\xff" * 8, b""]):
        subject.heard(broken, 0)
    subject.replayed([b"x", b"y", b"z"], 0)
    assert causes(subject) == ["frames", "sequence", "sequence", "frames"]
    subject.heard(message(2, pack(stored(3))), 0)
    work(subject)
    assert subject.replay == 1


def test_unknown_events_are_counted_and_skipped() -> None:
    """The rest of the batch counts."""
    subject = live(pack({"type": "BlockMoved"}, ["BlockMoved", 3], stored(1)))
    assert [(trouble.cause, trouble.times) for trouble in subject.troubles] == [("unknown_event", 2)]
    assert subject.knowledge is Knowledge.EXACT
    assert len(subject.drain().add) == 1


def test_another_rank_on_our_port_is_said() -> None:
    """Ports of ranks that overlap would mix two caches."""
    assert causes(live(pack(stored(1), rank=1), rank=0)) == ["rank"]
    assert causes(live(pack(stored(1), rank=1), rank=1)) == []
    assert causes(live(pack(stored(1), rank=0))) == []


def test_tokens_of_another_model_are_said() -> None:
    """The vocabulary lacks them: the blocks are left out, and the operator hears which setting is wrong."""

    class Strict(Text):
        def decode(self, token_ids: Sequence[int]) -> bytes:
            raise UnknownToken("all of them")

    subject = Feed(vllm.decode, Mirror(POOL, Strict(), SIZE), rank=None, can_replay=False)
    subject.connected(0)
    subject.heard(message(0, pack(stored(1, 2))), 0)
    work(subject)
    assert subject.drain().add == []
    assert causes(subject) == ["unknown_token"]
    assert "model_dir" in subject.troubles[0].detail
    assert subject.blocks["unknown_token", Tier.GPU] == 2


def test_lag_is_that_of_live_batches() -> None:
    """Replayed ones are as old as they are, and an absurd timestamp is no lag."""
    subject = feed()
    subject.connected(0)
    work(subject)
    subject.replayed(message(0, pack(stored(1), timestamp=1.0)), 0)
    work(subject, wall_clock=1000)
    subject.replayed([b"", b"\xff" * 8, b""], 0)
    assert subject.lag == 0
    subject.heard(message(1, pack(stored(2), timestamp=float("nan"))), 0)
    work(subject, wall_clock=1000)
    assert subject.lag == 0
    subject.heard(message(2, pack(stored(3), timestamp=2000.0)), 0)
    work(subject, wall_clock=1000)
    assert subject.lag == 0
    subject.heard(message(3, pack(stored(4), timestamp=998.0)), 0)
    work(subject, wall_clock=1000)
    assert subject.lag == 2


def test_everything_is_told_in_an_order_that_an_index_may_believe() -> None:
    """Earlier blocks of a chain first: whoever stops in the middle holds prefixes."""
    subject = live(pack(stored(1, 2, 3, 4)), pack(stored(7, 8, parent=2)))
    told = list(subject.drain().add)
    held, _ = subject.everything()
    assert list(held) == told
