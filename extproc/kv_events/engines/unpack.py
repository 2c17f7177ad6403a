"""Finding one's way in msgpack without decoding it: piece by piece, so that others get their turn in between.

Where a value ends is known only when all of it was walked over, and decoders do so in one go: eight million token ids
hold up a process for half a second. Here a regular expression walks over some thousand numbers at a time. Knows msgpack
and no event, and judges nothing but that the bytes do not end too early.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import NamedTuple

from extproc.kv_events.engines import UnusableEvents

Walk = Generator[None, None, int]  # yields between pieces; returns the position behind what was walked over

PIECE = 4096  # values between two yields: a tenth of a millisecond where they are numbers

# Values whose length their first byte tells (numbers, constants, short strings), and 32-byte hashes.
_SCALAR = (
    rb"[\x00-\x7f\xc0\xc2\xc3\xe0-\xff]|[\xcc\xd0].|[\xcd\xd1]..|[\xca\xce\xd2].{4}|[\xcb\xcf\xd3].{8}|\xc4\x20.{32}|"
) + b"|".join(rb"\x%x.{%d}" % (0xA0 + length, length) for length in range(32))
_SCALARS = [(count, re.compile(rb"(?:%b){%d}+" % (_SCALAR, count), re.DOTALL)) for count in (PIECE, 256, 16, 1)]

# Strings, bytes and extensions that say their length: the bytes that it takes, and those of an extension's type.
_SIZED = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
_SIZED |= {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
_FIXED_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}


class Container(NamedTuple):
    """An array or a map."""

    start: int  # position of its first value
    values: int  # in it; keys of a map count too
    is_map: bool


def walk(data: bytes, position: int, values: int = 1) -> Walk:
    """Walk over so many values. Raises `UnusableEvents` (`garbage`)."""
    walked = 0
    while values:
        for count, scalars in _SCALARS:
            if count <= values and (match := scalars.match(data, position)) is not None:
                position, values = match.end(), values - count
                break
        else:
            count = 1
            position, inside = _enter(data, position)
            values += inside - 1
        walked += count
        if walked >= PIECE and values:
            walked = 0
            yield
    return position


def container(data: bytes, position: int) -> Container:
    """The array or map that begins here. Raises `UnusableEvents` (`wrong_shape` where none does, `garbage`)."""
    first = data[position] if position < len(data) else 0xC0
    if 0x80 <= first <= 0x9F:
        is_map = first < 0x90
        return Container(position + 1, (first & 0x0F) * (1 + is_map), is_map)
    if 0xDC <= first <= 0xDF:
        size, is_map = 2 if first in {0xDC, 0xDE} else 4, first >= 0xDE
        return Container(position + 1 + size, _number(data, position + 1, size) * (1 + is_map), is_map)
    raise UnusableEvents("wrong_shape", f"byte {first:#x} where an array or a map should begin")


def is_array(data: bytes, position: int) -> bool:
    """Whether an array begins here."""
    first = data[position] if position < len(data) else 0xC0
    return 0x90 <= first <= 0x9F or first in {0xDC, 0xDD}


def array_header(values: int) -> bytes:
    """What an array of so many values begins with."""
    return b"\xdd" + values.to_bytes(4, "big")


def _enter(data: bytes, position: int) -> tuple[int, int]:
    """The position behind a value, or where its first value is, and how many values are in it."""
    first = data[position] if position < len(data) else 0xC1
    if 0x80 <= first <= 0x9F or 0xDC <= first <= 0xDF:
        return container(data, position)[:2]
    if 0xA0 <= first <= 0xBF:
        return _checked(data, position + 1 + (first & 0x1F)), 0
    if first in _SIZED:
        size, more = _SIZED[first]
        return _checked(data, position + 1 + size + more + _number(data, position + 1, size)), 0
    if first in _FIXED_EXTENSIONS:
        return _checked(data, position + 2 + _FIXED_EXTENSIONS[first]), 0
    raise UnusableEvents("garbage", f"no value at byte {position}")


def _number(data: bytes, position: int, size: int) -> int:
    return int.from_bytes(data[position : _checked(data, position + size)], "big")


def _checked(data: bytes, position: int) -> int:
    if position > len(data):
        raise UnusableEvents("garbage", f"the payload ends after {len(data)} bytes, inside a value")
    return position
