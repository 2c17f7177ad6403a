"""vLLM's wire formats, from the recordings and from bytes built by its published structs."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.kv_events.engines import Cleared, Removed, Stored, Tier, UnusableEvents, fold, pieces, vllm
from extproc.kv_events.engines.msgpack import MAX_EVENTS, MAX_PAYLOAD
from tests.support import kv_recordings


def pack(*events: Any, batch: Any = None) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), 0] if batch is None else batch)


def stored(**fields: Any) -> dict[str, Any]:
    plain = {
        "type": "BlockStored",
        "block_hashes": [7],
        "parent_block_hash": None,
        "token_ids": [1, 2],
        "block_size": 2,
    }
    return plain | fields


def only(payload: bytes) -> Any:
    (event,) = vllm.decode(payload).events
    return event


@pytest.mark.parametrize("name", kv_recordings.ALL)
def test_every_recorded_batch_is_understood_whole(name: str) -> None:
    """No event of any version is skipped, and blocks have the tokens that their group says they have."""
    for payload in kv_recordings.payloads(name):
        batch = vllm.decode(payload)
        events = list(batch.events)
        assert batch.skipped == 0
        assert events
        assert batch.timestamp > 1.7e9
        for event in events:
            if isinstance(event, Stored) and event.kind in {None, "full_attention"}:
                assert len(event.tokens) == event.block_size * len(event.hashes) > 0


def test_arrays_and_maps_mean_the_same() -> None:
    """The same agents on 0.23 (arrays) and 0.24 (maps) store the same tokens in the same order."""

    def tokens(name: str) -> list[list[int]]:
        events = [event for payload in kv_recordings.payloads(name) for event in vllm.decode(payload).events]
        return [list(event.tokens) for event in events if isinstance(event, Stored)]

    assert tokens("0.23.0/A_agents") == tokens("0.24.0/A_agents")


@pytest.mark.parametrize("length", range(6, 12))
def test_an_array_may_end_early(length: int) -> None:
    """Fields were appended over the years: 6 after the tag in 0.10, 11 in 0.23."""
    fields = [[7], 6, [1, 2], 2, None, "GPU", None, [None], 1, "full_attention", None]
    event = only(pack(["BlockStored", *fields[:length]]))
    assert event == Stored(
        [7], 6, [1, 2], 2, group=1 if length > 8 else 0, kind="full_attention" if length > 9 else None
    )


def test_unknown_fields_are_ignored() -> None:
    """Later releases add fields, in maps and at the end of arrays."""
    assert only(pack(stored(session_id="s", moon_phase=3, ownership=None))) == Stored([7], None, [1, 2], 2)
    assert only(pack(["BlockRemoved", [7], "GPU", 0, None, None, "later"])) == Removed([7])
    assert only(pack(["AllBlocksCleared", 1])) == Cleared()
    counted = {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU", "remaining_copy_counts": [1]}
    assert only(pack(counted)) == Removed([7])


def test_unknown_events_are_skipped_and_counted() -> None:
    """An event of a later release costs nothing but itself."""
    batch = vllm.decode(
        pack({"type": "BlockMoved", "to": 3}, stored(), ["BlockMoved", 3], {"type": "AllBlocksCleared"})
    )
    assert list(filter(None, batch.events)) == [Stored([7], None, [1, 2], 2), Cleared()]
    assert batch.skipped == 2


def test_a_batch_may_be_a_map() -> None:
    """Some builds send the batch itself as a map."""
    batch = vllm.decode(msgspec.msgpack.encode({"ts": 2.0, "events": [stored()], "data_parallel_rank": 3}))
    assert (len(list(batch.events)), batch.timestamp, batch.rank) == (1, 2.0, 3)


def test_bytes_hashes_fold_to_what_int_hashes_are() -> None:
    """An int hash is the last eight bytes of the bytes hash, big-endian; mixed in one event, they still agree."""
    digest = bytes(range(32))
    number = int.from_bytes(digest[-8:], "big")
    event = only(pack(stored(block_hashes=[digest, number], parent_block_hash=digest, token_ids=[1, 2, 3, 4])))
    assert event.hashes == [number, number]
    assert event.parent == number
    assert fold(-1) == 2**64 - 1


def test_recorded_bytes_hashes_name_their_parents() -> None:
    """In the sha256 recording every parent is a block stored before."""
    seen: set[int] = set()
    for payload in kv_recordings.payloads("0.32.0-sha256-bytes/S_small"):
        for event in vllm.decode(payload).events:
            if isinstance(event, Stored):
                assert event.parent is None or event.parent in seen
                seen.update(event.hashes)
    assert len(seen) > 50


@pytest.mark.parametrize(
    ("medium", "locality", "tier"),
    [
        (None, None, Tier.GPU),
        ("GPU", None, Tier.GPU),
        ("GPU", "LOCAL", Tier.GPU),
        ("CPU", None, Tier.CPU),
        ("STORAGE", None, Tier.STORAGE),
        ("GPU", "REMOTE", Tier.OTHER),
        ("MOON", None, Tier.OTHER),
    ],
)
def test_only_the_gpu_is_local(medium: str | None, locality: str | None, tier: Tier) -> None:
    """`medium` None or GPU is the instance's own cache; everything else lies elsewhere."""
    assert only(pack(stored(medium=medium, locality=locality))).tier is tier
    assert (
        only(pack({"type": "BlockRemoved", "block_hashes": [1], "medium": medium, "locality": locality})).tier is tier
    )


def test_adapter_and_salt_are_read_from_the_recordings() -> None:
    """LoRA by name, the salt in a prompt's first block only, both together in one entry."""
    events = [event for payload in kv_recordings.payloads("0.32.0/J_lora") for event in vllm.decode(payload).events]
    firsts = [(event.adapter, event.salt) for event in events if isinstance(event, Stored) and event.parent is None]
    assert firsts == [(None, None), ("ad1", None), ("ad2", None), ("ad1", "tenant-a")]
    assert all(event.plain is None for event in events if isinstance(event, Stored))


@pytest.mark.parametrize(
    ("extra_keys", "parent", "salt", "plain"),
    [
        (None, None, None, None),
        ([None, None], None, None, None),
        ([["s"], None], None, "s", None),
        ([["ad"], ["ad"]], None, None, None),
        ([["ad", "s"], ["ad"]], None, "s", None),
        ([None, [["image", 3]]], None, None, 1),  # an image from 0.24 on: a pair with its offset
        ([None, ["image"]], None, None, 1),  # before: its id
        ([["s"], ["image"]], None, "s", 1),
        ([[["image", 0], "s"], None], None, None, 0),
        ([["image"], None], 5, None, 0),  # behind other blocks a string is no salt
        ([None, [b"embedding"]], None, None, 1),
    ],
)
def test_what_separates_blocks_of_equal_text(
    extra_keys: Any, parent: int | None, salt: str | None, plain: int | None
) -> None:
    """Adapter and salt name another chain; images and embeddings end what text alone can match."""
    event = only(
        pack(
            stored(
                block_hashes=[1, 2], token_ids=[1, 2, 3, 4], parent_block_hash=parent, lora_id=1, lora_name="ad",
                extra_keys=extra_keys,
            )
        )
    )  # fmt: skip
    assert (event.adapter, event.salt, event.plain) == ("ad", salt, plain)


def test_an_adapter_without_a_name_matches_nothing() -> None:
    """Up to 0.13 an event has the adapter's number only, and no request names that."""
    event = only(pack(["BlockStored", [7], None, [1, 2], 2, 4, "GPU"]))
    assert (event.adapter, event.plain) == (None, 0)


def test_the_sliding_window_group_may_name_fewer_blocks_or_none() -> None:
    """Observation 12: its tokens cover the whole range all the same."""
    events = [
        event for payload in kv_recordings.payloads("0.32.0-hybrid/W_hybrid") for event in vllm.decode(payload).events
    ]
    sliding = [event for event in events if isinstance(event, Stored) and event.kind == "sliding_window"]
    assert any(not event.hashes and event.tokens for event in sliding)
    assert any(0 < len(event.hashes) * event.block_size < len(event.tokens) for event in sliding)
    assert {(event.group, event.window) for event in sliding} == {(0, 256)}


@pytest.mark.parametrize(
    ("cause", "payload"),
    [
        ("garbage", b""),
        ("garbage", b"\xc1"),
        ("garbage", b"\x93\xcb"),
        ("garbage", pack(stored())[:-3]),
        ("garbage", b"\x93\x01\x91" + b"\x91" * 50_000),
        ("garbage", b"\x93\x01\x91" + b"\x91" * 100_000),
        ("too_long", b"\x92\x01\xdd\xff\xff\xff\xff"),  # four billion events
        ("wrong_shape", b"\x00"),
        ("wrong_shape", pack(batch=[])),
        ("wrong_shape", pack(batch=["now", []])),
        ("wrong_shape", pack(batch=[1.0, 5])),
        ("wrong_shape", pack(batch=[1.0, [5]])),
        ("wrong_shape", pack(batch={"events": []})),
        ("too_long", pack(batch=[1.0, [None] * (MAX_EVENTS + 1)])),
        ("too_long", pack(stored(block_hashes=[7], token_ids=[9] * 100_000, block_size=100_000))),
        ("too_long", pack(stored(x=["x"] * 400_000))),
        ("wrong_shape", pack({"type": "BlockStored"})),
        ("wrong_shape", pack(["BlockStored", [1]])),
        ("wrong_shape", pack(stored(block_hashes=["x"]))),
        ("wrong_shape", pack(stored(block_hashes=[1.5]))),
        ("wrong_shape", pack(stored(token_ids=[None]))),
        ("wrong_shape", pack(stored(token_ids="text"))),
        ("wrong_shape", pack(stored(block_size=True))),
        ("wrong_shape", pack(stored(extra_keys=[1]))),
        ("wrong_shape", pack(stored(), {"type": "BlockRemoved", "block_hashes": 3})),
        ("wrong_shape", pack(stored(token_ids=[9] * 100_000, parent_block_hash="x"))),
        ("wrong_shape", pack(batch={"ts": 1.0, "data_parallel_rank": list(range(100_000))})),
        ("wrong_shape", pack(batch=[1.0, {"x": [9] * 100_000}])),
        ("garbage", pack(stored(token_ids=[9] * 100_000))[:-3]),
        ("oversized", bytes(MAX_PAYLOAD + 1)),
    ],
)
def test_a_payload_that_cannot_be_read_says_why(cause: str, payload: bytes) -> None:
    """Whatever is wrong with it, there is one error with one of four causes, when it is opened or read."""
    with pytest.raises(UnusableEvents) as caught:
        list(vllm.decode(payload).events)
    assert caught.value.cause == cause


@given(st.binary(max_size=300))
def test_random_bytes_are_a_batch_or_unusable(payload: bytes) -> None:
    """No other exception leaves the adapter."""
    with suppress(UnusableEvents):
        list(vllm.decode(payload).events)


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
_fields = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "extra_keys",
    "medium",
    "lora_name",
    "group_idx",
]


@given(
    st.lists(
        st.dictionaries(st.sampled_from(_fields), _values).map(lambda fields: stored(**fields)) | _values, max_size=3
    )
)
def test_wrong_types_anywhere_are_a_batch_or_unusable(events: list[Any]) -> None:
    """Wherever an engine puts a value of another type, the payload is read or refused whole."""
    with suppress(UnusableEvents):
        list(vllm.decode(pack(*events)).events)


@given(st.integers(1, 40), st.integers(1, 12), st.none() | st.integers(0, 40))
def test_pieces_are_the_event(count: int, size: int, plain: int | None) -> None:
    """Cut into pieces, an event stores the same blocks, tokens and separators behind the same parents."""
    event = Stored(list(range(count)), 99, list(range(2 * count)), 2, "ad", "s", plain, group=3, kind="k", window=5)
    parts = [part for part in pieces(event, size) if isinstance(part, Stored)]
    assert all(len(part.hashes) <= size for part in parts)
    assert [block for part in parts for block in part.hashes] == event.hashes
    assert [token for part in parts for token in part.tokens] == event.tokens
    assert [part.parent for part in parts] == [99, *(part.hashes[-1] for part in parts[:-1])]
    assert sum(min(len(part.hashes) if part.plain is None else part.plain, len(part.hashes)) for part in parts) == min(
        count if plain is None else plain, count
    )
    removed = Removed(list(range(count)), Tier.CPU, 2)
    assert [
        block for part in pieces(removed, size) if isinstance(part, Removed) for block in part.hashes
    ] == removed.hashes


def test_a_million_blocks_are_refused() -> None:
    """A payload above any step's size is not decoded at all."""
    payload = pack(stored(block_hashes=[2**63] * 1_000_000, token_ids=[9] * 1_000_000, block_size=1))
    with pytest.raises(UnusableEvents, match="oversized"):
        vllm.decode(payload)
