"""The frame that vLLM and SGLang share: a msgpack batch of tagged events, as maps or as arrays. Reads, never judges.

A batch is `[timestamp, [events], rank]` or a map of the same. An event is a map with its kind under `type`, or an array
with its kind first. Releases append fields, so a missing field is None and an unknown one is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec

from extproc.kv_events.engines import Batch, Event, Tier, UnusableEvents, large

# A step stores about as many tokens as it prefills. Eight MiB are two million token ids, far above any step.
MAX_PAYLOAD = 8 * 1024 * 1024
MAX_EVENTS = 1 << 16

Hash = int | bytes
Hashes = list[Hash]
_Events = Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_EVENTS)]


# Events that are alike in every engine, in both shapes. Who sends more fields appends them in a subclass.


class RemovedMap(msgspec.Struct, tag="BlockRemoved", gc=False):
    """Blocks left the cache."""

    block_hashes: Hashes
    medium: str | None = None


class RemovedArray(RemovedMap, array_like=True, gc=False):
    """The same as an array."""


class ClearedMap(msgspec.Struct, tag="AllBlocksCleared", gc=False):
    """The cache is empty."""


class ClearedArray(ClearedMap, array_like=True, gc=False):
    """The same as an array."""


# The frame around them.


class _ArrayBatch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: _Events
    data_parallel_rank: int | None = None


class _MapBatch(msgspec.Struct, gc=False):
    ts: float
    events: _Events
    data_parallel_rank: int | None = None


class _ArrayTag(msgspec.Struct, array_like=True, gc=False):
    type: str


class _MapTag(msgspec.Struct, gc=False):
    type: str


_array_batch = msgspec.msgpack.Decoder(_ArrayBatch)
_map_batch = msgspec.msgpack.Decoder(_MapBatch)
_array_tag = msgspec.msgpack.Decoder(_ArrayTag)
_map_tag = msgspec.msgpack.Decoder(_MapTag)


class Reader:
    """Decodes one engine's batches. `maps` and `arrays` are unions of its tagged event structs in either shape."""

    def __init__(self, maps: Any, arrays: Any, tags: frozenset[str], translate: Callable[[Any], Event]) -> None:
        self._maps: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(maps)
        self._arrays: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(arrays)
        self._tags = tags
        self._translate = translate

    def decode(self, payload: bytes) -> Batch:
        """Open a payload. Raises `UnusableEvents`, as the events of the batch do.

        Its causes: `oversized`, `too_long` (a list in it, or a block), `garbage` (no msgpack), `wrong_shape`.
        """
        if len(payload) > MAX_PAYLOAD:
            raise UnusableEvents("oversized", f"{len(payload)} bytes")
        batch = Batch(iter(()))
        if len(payload) <= large.LARGE:
            batch.events = self._read(_frame(payload, batch), batch)
        else:
            batch.events = self._read(large.events(payload, MAX_EVENTS, lambda rest: _frame(rest, batch)), batch)
        return batch

    def _read(self, events: Iterable[msgspec.Raw | bytes | None], batch: Batch) -> Iterator[Event | None]:
        """The events of a batch; None where a piece of work is done."""
        for raw in events:
            if raw is not None and memoryview(raw).nbytes > large.LARGE:
                yield from self._read_large(bytes(raw), batch)
            elif raw is None or (event := self._event(raw, batch)) is None:
                yield None
            else:
                yield event

    def _read_large(self, raw: bytes, batch: Batch) -> Iterator[Event | None]:
        for part in large.parts(raw, lambda rest: self._event(rest, batch)):
            yield None if part is None else self._event(part, batch)

    def _event(self, raw: msgspec.Raw | bytes, batch: Batch) -> Event | None:
        """One event; None for a kind that we do not know."""
        is_map = _is_map(raw)
        with _judged():
            try:
                struct = (self._maps if is_map else self._arrays).decode(raw)
            except msgspec.ValidationError:
                tag: _MapTag | _ArrayTag = (_map_tag if is_map else _array_tag).decode(raw)
                if tag.type in self._tags:
                    raise
                batch.skipped += 1
                return None
            return self._translate(struct)


def _frame(payload: bytes, batch: Batch) -> Sequence[msgspec.Raw]:
    """What a batch says of itself is noted; its events are returned undecoded."""
    with _judged():
        frame: _MapBatch | _ArrayBatch = (_map_batch if _is_map(payload) else _array_batch).decode(payload)
    batch.timestamp, batch.rank = frame.ts, frame.data_parallel_rank
    return frame.events


@contextmanager
def _judged() -> Iterator[None]:
    """What msgspec says of bytes, in our words."""
    try:
        yield
    except msgspec.ValidationError as error:
        cause = "too_long" if "of length <=" in str(error) else "wrong_shape"
        raise UnusableEvents(cause, str(error)) from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UnusableEvents("garbage", str(error)) from error


def tier(medium: str | None, locality: str | None = None) -> Tier:
    """The tier that an engine's words mean. An engine that does not say has only the GPU's."""
    if locality == "REMOTE":
        return Tier.OTHER
    return Tier.GPU if medium is None else _TIERS.get(medium, Tier.OTHER)


_TIERS = {
    "GPU": Tier.GPU,
    "CPU": Tier.CPU,
    "CPU_PINNED": Tier.CPU,
    "CPU_TIER1": Tier.CPU,
    "CPU_TIER2": Tier.STORAGE,
    "STORAGE": Tier.STORAGE,
    "DISK": Tier.STORAGE,
}


def _is_map(data: bytes | msgspec.Raw) -> bool:
    """Whether a msgpack value begins like a map: fixmap, map 16 or map 32."""
    view = memoryview(data)
    first = view[0] if view.nbytes else 0
    return 0x80 <= first <= 0x8F or first in {0xDE, 0xDF}
