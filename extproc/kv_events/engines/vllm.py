"""vLLM's KV events, in every wire format in use: arrays (to 0.23) and maps (from 0.24), int and bytes hashes.

Recorded from 0.10.2 to 0.32 (tests/fixtures/README.md). What a release does not say stays unknown here: up to 0.16 a
cache salt leaves no trace but another hash, and up to 0.13 a LoRA adapter has a number and no name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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

_ExtraKeys = list[list[Any] | None]


class _Stored(msgspec.Struct, gc=False):
    block_hashes: Hashes
    parent_block_hash: Hash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None  # 0.14
    extra_keys: _ExtraKeys | None = None  # 0.17
    group_idx: int | None = None  # 0.21
    kv_cache_spec_kind: str | None = None  # 0.22
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None  # 0.28


class _StoredMap(_Stored, tag="BlockStored", gc=False):
    pass


class _StoredArray(_Stored, tag="BlockStored", array_like=True, gc=False):
    pass


class _RemovedMap(RemovedMap, gc=False):
    group_idx: int | None = None
    locality: str | None = None


class _RemovedArray(RemovedArray, array_like=True, gc=False):
    group_idx: int | None = None
    locality: str | None = None


def _translate(event: _Stored | _RemovedMap | _RemovedArray | ClearedMap) -> Event:
    if isinstance(event, _Stored):
        salt, plain = _separators(event)
        media, told = _media(event, plain)
        return Stored(
            [fold(block_hash) for block_hash in event.block_hashes],
            None if event.parent_block_hash is None else fold(event.parent_block_hash),
            event.token_ids,
            event.block_size,
            event.lora_name or None,
            salt,
            plain,
            tier(event.medium, event.locality),
            event.group_idx or 0,
            event.kv_cache_spec_kind,
            event.kv_cache_spec_sliding_window,
            media,
            told,
        )
    if isinstance(event, _RemovedMap | _RemovedArray):
        hashes = [fold(block_hash) for block_hash in event.block_hashes]
        return Removed(hashes, tier(event.medium, event.locality), event.group_idx or 0)
    return Cleared()


def _separators(event: _Stored) -> tuple[str | None, int | None]:
    """The chain's salt, and how many leading blocks stand for text, LoRA adapter and salt alone.

    An entry of `extra_keys` lists, in this order, the adapter's name, what is in the block besides text (image ids,
    prompt embeddings) and, in a prompt's first block, the salt. A lone string in a first block is taken for the salt;
    should it be an image id, the chain gets a root that no request asks for: no hit instead of a false one.
    """
    if event.lora_id is not None and not event.lora_name:
        return None, 0  # an adapter without a name: no request can be matched with it
    salt: str | None = None
    for block, others in _others(event):
        if block == 0 and event.parent_block_hash is None and len(others) == 1 and isinstance(others[0], str):
            salt = others[0]
        else:
            return salt, block
    return salt, None


def _media(event: _Stored, plain: int | None) -> tuple[Mapping[int, Sequence[int]], int | None]:
    """Where media begin in the blocks from the first that is not `plain`, and how many leading blocks stand for text
    and such media. From 0.24 on a medium is a pair: its id, and where it begins counted from the block's start."""
    media: dict[int, Sequence[int]] = {}
    for block, others in _others(event):
        if plain is None or block < plain:
            continue
        if not all(map(_is_medium, others)):
            return media, block
        media[block] = [offset for _, offset in others]
    return media, None if media else plain


def _others(event: _Stored) -> Iterator[tuple[int, Sequence[Any]]]:
    """What is in each block besides text and the LoRA adapter, where there is something."""
    for block, keys in enumerate(event.extra_keys or ()):
        others: Sequence[Any] = keys[1:] if keys and keys[0] == event.lora_name else keys or ()
        if others:
            yield block, others


def _is_medium(key: Any) -> bool:
    return isinstance(key, list | tuple) and len(key) == 2 and isinstance(key[0], str) and type(key[1]) is int


_reader = Reader(
    _StoredMap | _RemovedMap | ClearedMap,
    _StoredArray | _RemovedArray | ClearedArray,
    frozenset({"BlockStored", "BlockRemoved", "AllBlocksCleared"}),
    _translate,
)


def decode(payload: bytes) -> Batch:
    """Read one batch. Raises `UnusableEvents`."""
    return _reader.decode(payload)
