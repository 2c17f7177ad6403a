"""Large payloads are cut into parts that say the same; here everything is large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from extproc.kv_events.engines import Cleared, Decode, Event, Removed, Stored, UnusableEvents, large, sglang, vllm
from extproc.kv_events.mirror import Mirror
from tests.support import kv_recordings
from tests.support.mirrored import drain
from tests.support.plain_cache import POOL, SIZE


class Numbers:
    """A vocabulary of every id."""

    def decode(self, token_ids: Sequence[int]) -> bytes:
        return b"".join(token.to_bytes(4, "big") for token in token_ids)


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """And parts have few blocks."""
    monkeypatch.setattr(large, "BLOCKS", 3)
    with monkeypatch.context() as patch:
        patch.setattr(large, "LARGE", 0)
        yield


def events(payload: bytes, decode: Decode = vllm.decode) -> list[Event]:
    return [event for event in decode(payload).events if event is not None]


def pack(*said: Any) -> bytes:
    return msgspec.msgpack.encode([1.5, list(said), 3])


RECORDED = [
    "0.11.2/B_evict",
    "0.23.0/D_salt",
    "0.32.0/J_lora",
    "0.32.0-sha256-bytes/S_small",
    "0.32.0-hybrid/W_hybrid",
    "0.32.0-groups/deepseek_v4",
    "0.32.0-groups/kimi_linear",
]


@pytest.mark.parametrize("name", RECORDED)
def test_the_parts_of_recorded_events_say_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One mirror is told of each payload at once, another of it part by part: both hold the same."""
    at_once, in_parts = (Mirror(POOL, Numbers(), SIZE) for _ in range(2))
    monkeypatch.setattr(large, "BLOCKS", 3)
    for payload in kv_recordings.payloads(name):
        for event in events(payload):
            at_once.apply(event)
        with monkeypatch.context() as patch:
            patch.setattr(large, "LARGE", 0)
            for event in events(payload):
                assert isinstance(event, Cleared) or len(event.hashes) <= 3
                in_parts.apply(event)
        drain(at_once)
        drain(in_parts)
        assert set(at_once.held) == set(in_parts.held)
        assert list(at_once.adapters) == list(in_parts.adapters)
    assert at_once.blocks == in_parts.blocks > 0


@pytest.mark.usefixtures("everything_is_large")
def test_what_a_batch_says_of_itself_is_known_at_its_end() -> None:
    """As an array or as a map, whatever the order; and kinds that nobody knows are counted."""
    moved, cleared = {"type": "BlockMoved", "to": [1] * 99}, {"type": "AllBlocksCleared"}
    for batch in ([1.5, [moved, cleared], 3], {"events": [moved, cleared], "data_parallel_rank": 3, "ts": 1.5}):
        opened = vllm.decode(msgspec.msgpack.encode(batch))
        assert [type(event).__name__ for event in opened.events if event] == ["Cleared"]
        assert (opened.timestamp, opened.rank, opened.skipped) == (1.5, 3, 1)


@pytest.mark.usefixtures("everything_is_large")
def test_parts_stand_behind_each_other() -> None:
    """The first behind the event's parent and with its salt; each other one behind the last block before it."""
    stored = {"type": "BlockStored", "block_hashes": list(range(1, 8)), "parent_block_hash": None, "block_size": 2}
    stored |= {"token_ids": list(range(14)), "extra_keys": [["salt"], *(6 * [None])]}
    parts = events(pack(stored))
    assert [part.hashes for part in parts if isinstance(part, Stored)] == [[1, 2, 3], [4, 5, 6], [7]]
    assert [part.parent for part in parts if isinstance(part, Stored)] == [None, 3, 6]
    assert [part.salt for part in parts if isinstance(part, Stored)] == ["salt", None, None]
    assert [token for part in parts if isinstance(part, Stored) for token in part.tokens] == list(range(14))


@pytest.mark.usefixtures("everything_is_large")
def test_an_image_ends_the_text_in_the_part_where_it_is() -> None:
    """Parts behind it have a parent that nobody knows."""
    stored = {"type": "BlockStored", "block_hashes": list(range(1, 8)), "parent_block_hash": None, "block_size": 2}
    stored |= {"token_ids": list(range(14)), "extra_keys": [*(4 * [None]), [["image", 0]], *(2 * [None])]}
    mirror = Mirror(POOL, Numbers(), SIZE)
    for part in events(pack(stored)):
        mirror.apply(part)
    assert (len(drain(mirror).add), mirror.blocks) == (4, 4)


@pytest.mark.usefixtures("everything_is_large")
def test_arrays_of_another_engine_are_cut_alike() -> None:
    """SGLang's tokens may be pairs; its lists stand in the same places."""
    pairs = [(token, token + 1) for token in range(10)]
    parts = events(pack(["BlockStored", [1, 2, 3, 4, 5], 9, pairs, 2, None, "GPU"]), sglang.decode)
    assert [token for part in parts if isinstance(part, Stored) for token in part.tokens] == list(range(10))
    removed = events(pack(["BlockRemoved", [1, 2, 3, 4, 5], "GPU"]), sglang.decode)
    assert removed == [Removed([1, 2, 3]), Removed([4, 5])]


def test_a_million_tokens_come_in_parts() -> None:
    """A prompt that was loaded from another tier is stored in one event, however long it is."""
    count = 1 << 16
    stored = {"type": "BlockStored", "block_hashes": list(range(count)), "parent_block_hash": None, "block_size": 16}
    read = list(vllm.decode(pack(stored | {"token_ids": [9] * (16 * count)})).events)
    parts = [part for part in read if isinstance(part, Stored)]
    assert sum(len(part.hashes) for part in parts) == count
    assert max(len(part.tokens) for part in parts) <= large.TOKENS
    assert read.count(None) > 100  # others had their turn before the first part was found


def test_a_list_that_says_it_is_longer_than_the_payload_is_garbage() -> None:
    """It is not believed, and costs no memory."""
    payload = pack({"type": "BlockStored", "block_hashes": [7], "token_ids": [9] * 100_000})
    wrong = payload.replace(b"\xdd" + (100_000).to_bytes(4, "big"), b"\xdd\xff\xff\xff\xff")
    assert wrong != payload
    with pytest.raises(UnusableEvents) as caught:
        events(wrong)
    assert caught.value.cause == "garbage"
