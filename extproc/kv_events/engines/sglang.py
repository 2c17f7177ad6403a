"""SGLang's KV events: vLLM's frame, as arrays and, later, as maps; hashes are signed 64-bit integers.

Differences (sgl-project/sglang, `disaggregation/kv_events.py`, `mem_cache/events.py`): under EAGLE a token is a pair
with its successor; the salt stands in every block's event, in arrays inside a trailing map; other names for tiers; one
KV-cache group. Releases that hash pages without salt or adapter cannot be told apart by them here either.
"""

from __future__ import annotations

import msgspec

from extproc.kv_events.engines import Batch, Cleared, Event, Removed, Stored, fold
from extproc.kv_events.engines.msgpack import (
    ClearedArray,
    ClearedMap,
    Hash,
    Hashes,
    Reader,
    RemovedArray,
    RemovedMap,
    tier,
)

_Tokens = list[int | tuple[int, int]]


class _Metadata(msgspec.Struct, gc=False):
    cache_salt: str | None = None


class _StoredMap(msgspec.Struct, tag="BlockStored", gc=False):
    block_hashes: Hashes
    parent_block_hash: Hash | None
    token_ids: _Tokens
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    cache_salt: str | None = None
    lora_name: str | None = None


class _StoredArray(msgspec.Struct, tag="BlockStored", array_like=True, gc=False):
    block_hashes: Hashes
    parent_block_hash: Hash | None
    token_ids: _Tokens
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    metadata: _Metadata | None = None


def _translate(event: _StoredMap | _StoredArray | RemovedMap | ClearedMap) -> Event:
    if isinstance(event, _StoredMap):
        return _stored(event, event.cache_salt, event.lora_name)
    if isinstance(event, _StoredArray):
        return _stored(event, event.metadata.cache_salt if event.metadata else None, None)
    if isinstance(event, RemovedMap):
        return Removed([fold(block_hash) for block_hash in event.block_hashes], tier(event.medium))
    return Cleared()


def _stored(event: _StoredMap | _StoredArray, salt: str | None, adapter: str | None) -> Stored:
    return Stored(
        [fold(block_hash) for block_hash in event.block_hashes],
        None if event.parent_block_hash is None else fold(event.parent_block_hash),
        [token if isinstance(token, int) else token[0] for token in event.token_ids],
        event.block_size,
        adapter or None,
        salt or None,
        0 if event.lora_id is not None and not adapter else None,  # an adapter without a name matches no request
        tier(event.medium),
    )


_reader = Reader(
    _StoredMap | RemovedMap | ClearedMap,
    _StoredArray | RemovedArray | ClearedArray,
    frozenset({"BlockStored", "BlockRemoved", "AllBlocksCleared"}),
    _translate,
)


def decode(payload: bytes) -> Batch:
    """Read one batch. Raises `UnusableEvents`."""
    return _reader.decode(payload)
