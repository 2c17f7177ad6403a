"""vLLM's KV events on the wire: msgpack payloads, byte for byte, and the frames around them, in both formats in use.

Source: recordings of vLLM 0.11 to 0.32 (tests/fixtures), which the tests decode and encode again without a difference.
A payload is `[timestamp, [event, ...], data_parallel_rank]`. Up to 0.23 an event is an array that starts with its tag,
from 0.24 on a map with the tag under `type` and without the keys that hold defaults.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar

import msgspec

BlockHash = int | bytes
ExtraKeys = Sequence[str | Sequence[str | int]] | None  # of one block: LoRA name, (multi-modal id, offset), cache salt


class BlockStored(msgspec.Struct, array_like=True, tag="BlockStored", gc=False):
    """Blocks that can be found from here on; `token_ids` are those of all of them, one after the other."""

    block_hashes: Sequence[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: Sequence[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: Sequence[ExtraKeys] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(msgspec.Struct, array_like=True, tag="BlockRemoved", gc=False):
    """One copy of each of these blocks was evicted."""

    block_hashes: Sequence[BlockHash]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, array_like=True, tag="AllBlocksCleared", gc=False):
    """The whole cache was forgotten."""


class BlockStoredMap(BlockStored, array_like=False, tag_field="type", tag="BlockStored", omit_defaults=True, gc=False):
    """`BlockStored` from 0.24 on."""

    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class BlockRemovedMap(
    BlockRemoved, array_like=False, tag_field="type", tag="BlockRemoved", omit_defaults=True, gc=False
):
    """`BlockRemoved` from 0.24 on."""

    locality: str | None = None
    ownership: str | None = None


class AllBlocksClearedMap(AllBlocksCleared, array_like=False, tag_field="type", tag="AllBlocksCleared", gc=False):
    """`AllBlocksCleared` from 0.24 on."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Batch(msgspec.Struct, array_like=True, gc=False):
    """The events of one step, in the order in which they happened."""

    ts: float  # seconds since 1970
    events: Sequence[Event]
    data_parallel_rank: int | None = 0


class _Arrays(Batch, gc=False):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


class _Maps(Batch, gc=False):
    events: list[BlockStoredMap | BlockRemovedMap | AllBlocksClearedMap]


class Format(StrEnum):
    """Which vLLM to sound like."""

    ARRAYS = "arrays"  # 0.23
    MAPS = "maps"  # 0.32


class Wire:
    """One format: the classes of its events, its payloads, its frames."""

    END: ClassVar[bytes] = b"\xff" * 8  # sequence -1: the end of a replay

    def __init__(self, style: Format) -> None:
        maps = style is Format.MAPS
        self.stored: type[BlockStored] = BlockStoredMap if maps else BlockStored
        self.removed: type[BlockRemoved] = BlockRemovedMap if maps else BlockRemoved
        self.cleared: type[AllBlocksCleared] = AllBlocksClearedMap if maps else AllBlocksCleared
        self._replays_topic = maps
        self._decoder: msgspec.msgpack.Decoder[Batch] = msgspec.msgpack.Decoder(_Maps if maps else _Arrays)
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, batch: Batch) -> bytes:
        """The payload of a batch; its events must be of this format's classes."""
        return self._encoder.encode(batch)

    def decode(self, payload: bytes) -> Batch:
        """The batch of a payload.

        Raises:
            msgspec.DecodeError: it is not a payload of this format.
        """
        return self._decoder.decode(payload)

    def replayed(self, topic: bytes, sequence: int, payload: bytes) -> list[bytes]:
        """The frames of one replayed batch, behind the client's identity. 0.32 repeats the topic, 0.24 did not."""
        middle = [topic] if self._replays_topic else []
        return [b"", *middle, sequence.to_bytes(8, "big"), payload]

    def replay_end(self) -> list[bytes]:
        """The frames that end a replay, behind the client's identity."""
        middle = [b""] if self._replays_topic else []
        return [b"", *middle, self.END, b""]
