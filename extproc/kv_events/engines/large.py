"""Large payloads in small ones: a batch event by event, and a large event as several that say the same.

An engine's own adapter then decodes parts that are as small as any. Knows where in a batch its events are, and where in
an event its long lists are, which is the same in vLLM and SGLang; everything else is left as it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple

from extproc.kv_events.engines import Event, Removed, Stored, UnusableEvents, unpack

LARGE = 64 * 1024  # bytes; what is smaller is split and decoded at once, in about a millisecond
BLOCKS = 256  # of one part, if they are small
TOKENS = 8192  # of one part, or those of one block
LONGEST_BLOCK = 1 << 15  # tokens; state-space groups have blocks of some thousand
LARGEST = 512 * 1024  # bytes of a part: 32,768 token ids, and what a block may say of images

Bytes = Generator[bytes | None, None, None]  # None: a piece of the work is done

_EVENTS = b"\xa6events"
_EMPTY = b"\x90"
# The lists of an event and the hash before them, by their keys or by their places.
_HASHES, _PARENT, _TOKENS, _EXTRA_KEYS = range(4)
_KEYS = {b"\xacblock_hashes": _HASHES, b"\xb1parent_block_hash": _PARENT, b"\xa9token_ids": _TOKENS}
_KEYS |= {b"\xaaextra_keys": _EXTRA_KEYS}
_PLACES = {1: _HASHES, 2: _PARENT, 3: _TOKENS, 8: _EXTRA_KEYS}


def events(payload: bytes, most: int, frame: Callable[[bytes], object]) -> Bytes:
    """The events of a batch. `frame` gets the batch without them, when all are found.

    Raises `UnusableEvents` (`wrong_shape`, `garbage`, and `too_long` for more than `most`).
    """
    batch = unpack.container(payload, 0)
    position = start = batch.start
    for place in range(batch.values):
        is_events = (
            payload[start:position] == _EVENTS if batch.is_map and place % 2 else place == 1 and not batch.is_map
        )
        if is_events:
            break
        start = position
        position = yield from unpack.walk(payload, position)
    else:
        raise UnusableEvents("wrong_shape", "a batch without events")
    start = position
    position, count, is_map = unpack.container(payload, position)
    if is_map or count > most:
        raise UnusableEvents("wrong_shape" if is_map else "too_long", f"{count} events")
    for _ in range(count):
        begin = position
        position = yield from unpack.walk(payload, position)
        yield payload[begin:position]
    frame(payload[:start] + _EMPTY + payload[position:])


class _Span(NamedTuple):
    """One of an event's fields that parts have of their own."""

    field: int
    start: int
    end: int


def parts(event: bytes, decode: Callable[[bytes], Event | None]) -> Bytes:
    """A large event in parts. `decode` reads what is left of it without its lists; None for a kind that nobody knows.

    Raises `UnusableEvents` (`garbage`, and `too_long` for a block, or a rest, that is too large itself).
    """
    spans: list[_Span] = []
    position, values, is_map = unpack.container(event, 0)
    for place in range(values // 2 if is_map else values):
        field = _PLACES.get(place)
        if is_map:
            start = position
            position = yield from unpack.walk(event, position)
            field = _KEYS.get(event[start:position])
        start = position
        position = yield from unpack.walk(event, position)
        if field == _PARENT or (field is not None and unpack.is_array(event, start)):
            spans.append(_Span(field, start, position))
    rest = _with(event, spans, {_HASHES: _EMPTY, _TOKENS: _EMPTY, _EXTRA_KEYS: _EMPTY})
    what = decode(rest)
    if isinstance(what, Stored):
        yield from _cut(event, spans, what.block_size)
    elif isinstance(what, Removed):
        yield from _cut(event, [span for span in spans if span.field == _HASHES], 0)
    elif what is not None:
        yield rest


def _cut(event: bytes, spans: Sequence[_Span], block: int) -> Bytes:
    """`block` is in tokens."""
    if block > LONGEST_BLOCK:
        raise UnusableEvents("too_long", f"blocks of {block} tokens")
    lists = {span.field: _List(event, span.start) for span in spans if span.field != _PARENT}
    none = _List(_EMPTY, 0)
    hashes, tokens, keys = (lists.get(field, none) for field in (_HASHES, _TOKENS, _EXTRA_KEYS))
    blocks = min(BLOCKS, max(1, TOKENS // max(block, 1)))
    aligned = tokens.left == hashes.left * block
    taken: dict[int, bytes] = {}
    while not taken or hashes.left:
        count = min(blocks, hashes.left)
        # Where tokens do not fill the blocks it is not known which belong to which: any other number says so.
        wanted = count * block if aligned else 0 if taken else min(tokens.left, 1 + (count * block == 1))
        taken = {} if hashes.last is None else {_PARENT: hashes.last}
        taken[_HASHES] = yield from hashes.take(count)
        taken[_TOKENS] = yield from tokens.take(wanted)
        taken[_EXTRA_KEYS] = yield from keys.take(min(count, keys.left))
        yield _with(event, spans, taken)


class _List:
    """A list in an event, of which values are taken from the front."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position, self.left, _ = unpack.container(data, position)
        self.last: bytes | None = None  # the value taken last

    def take(self, count: int) -> Generator[None, None, bytes]:
        """So many values, as a list."""
        start = last = self._position
        if count:
            last = yield from unpack.walk(self._data, start, count - 1)
            self._position = yield from unpack.walk(self._data, last)
            self.left -= count
            self.last = self._data[last : self._position]
        return unpack.array_header(count) + self._data[start : self._position]


def _with(event: bytes, spans: Sequence[_Span], values: Mapping[int, bytes]) -> bytes:
    """An event with other values in these places. Raises `UnusableEvents` (`too_long`) where it is large even so."""
    kept: list[bytes] = []
    position = 0
    for span in spans:
        if span.field in values:
            kept += event[position : span.start], values[span.field]
            position = span.end
    joined = b"".join([*kept, event[position:]])
    if len(joined) > LARGEST:
        raise UnusableEvents("too_long", f"a part of an event has {len(joined)} bytes")
    return joined
