"""SGLang's wire formats, from bytes built by its published structs (arrays, and from September 2026 on maps)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from extproc.kv_events.engines import Cleared, Removed, Stored, Tier, UnusableEvents, sglang


class KVCacheEvent(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[Any]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    metadata: dict[str, str] | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[int]
    medium: str | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


def decode(*events: Any) -> list[Any]:
    return list(sglang.decode(msgspec.msgpack.encode([1.0, events, 0])).events)


def test_arrays_are_read() -> None:
    """A page is a block; its hash is a signed integer."""
    assert decode(BlockStored([-5, 6], None, [1, 2, 3, 4], 2, None), BlockRemoved([-5]), AllBlocksCleared()) == [
        Stored([2**64 - 5, 6], None, [1, 2, 3, 4], 2),
        Removed([2**64 - 5]),
        Cleared(),
    ]


def test_maps_are_read() -> None:
    """Later releases send maps, with salt and adapter beside the other fields."""
    event = {
        "type": "BlockStored", "block_hashes": [1], "parent_block_hash": -2, "token_ids": [3], "block_size": 1,
        "lora_id": None, "medium": "GPU", "cache_salt": "s", "lora_name": "ad", "session_id": "x",
    }  # fmt: skip
    assert decode(event) == [Stored([1], 2**64 - 2, [3], 1, "ad", "s")]


def test_the_pairs_of_speculative_decoding_are_their_first_tokens() -> None:
    """Under EAGLE every token comes with its successor."""
    assert decode(BlockStored([1], None, [(1, 2), (2, 3)], 2, None))[0].tokens == [1, 2]


def test_the_salt_stands_in_trailing_metadata() -> None:
    """In arrays a salted block has one more field."""
    assert decode(BlockStored([1], None, [1], 1, None, "GPU", {"cache_salt": "s", "session_id": "x"}))[0].salt == "s"


@pytest.mark.parametrize(
    ("medium", "tier"),
    [(None, Tier.GPU), ("GPU", Tier.GPU), ("CPU_PINNED", Tier.CPU), ("DISK", Tier.STORAGE), ("EXTERNAL", Tier.OTHER)],
)
def test_tiers_have_other_names(medium: str | None, tier: Tier) -> None:
    """Only what lies on the GPU is local."""
    assert decode(BlockStored([1], None, [1], 1, None, medium))[0].tier is tier
    assert decode(BlockRemoved([1], medium))[0].tier is tier


def test_an_adapter_without_a_name_matches_nothing() -> None:
    """A number names no model that a request could ask for."""
    assert decode(BlockStored([1], None, [1], 1, 4))[0].plain == 0


def test_what_cannot_be_read_is_unusable() -> None:
    """As for vLLM."""
    with pytest.raises(UnusableEvents):
        decode(["BlockStored", [1], None, [(1, 2, 3)], 1])
