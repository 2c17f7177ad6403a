"""Inputs that nobody planned: those of a corpus, cut, joined, bent, repeated. Pure: equal seeds, equal inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

LONGEST = 4096  # bytes: what is longer is another matter (bench.chaos), and slow
ROUNDS = 4  # changes of one input at most
# What parsers trip over, in JSON, YAML, msgpack and protobuf.
PIECES = (
    *(b"", b"\0", b"\xff", b"\x80", b"\xc1", b"{", b"}", b"[", b"]", b'"', b"\\", b":", b",", b"null", b"true", b"NaN"),
    *(
        b"-1",
        b"0",
        b"1e999",
        b"9" * 30,
        b"-9223372036854775809",
        b"18446744073709551616",
        b"0.1",
        b"\\ud800",
        b"\\u0000",
    ),
    *(b"\xed\xa0\x80", b"\xf0\x90\x80", "\u0301\u0316".encode(), "\U00020000".encode(), b"<|im_start|>", b"<|im_end|>"),
    *(
        b"\xcf" + b"\xff" * 8,
        b"\xd3\x80" + b"\0" * 7,
        b"\xcb\x7f\xf0" + b"\0" * 6,
        b"\xcb\x7f\xf8" + b"\0" * 6,
        b"\xc0",
    ),
    *(b"\xdd\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x90", b"\x91", b"\x81", b"\xa0"),
    *(
        b"&a ",
        b"*a",
        b"<<: ",
        b"- ",
        b"? ",
        b"!!python/object:os.system ",
        b"|\n",
        b">\n",
        b"%",
        b"@",
        b"`",
        b"\t",
        b"\n",
    ),
    *(b"\xff\xff\xff\xff\x0f", b"\x0a", b"\x12\x7f", b"role", b"content", b"assistant", b"user", b"tools", b"type"),
)

Change = Callable[[Random, bytearray, Sequence[bytes]], None]


def _flip(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _byte(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def _cut(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    del data[start : start + rng.choice((1, 1, 2, 4, 16, 64, 1024))]


def _truncate(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _insert(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    data[start:start] = rng.choice(PIECES)


def _replace(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    start, piece = rng.randrange(len(data) + 1), rng.choice(PIECES)
    data[start : start + len(piece)] = piece


def _repeat(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    part = bytes(data[start : start + rng.choice((1, 4, 16, 64))])
    data[start:start] = part * rng.choice((1, 2, 10, 100))


def _swap(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    size = rng.choice((1, 4, 16, 64))
    one, other = rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)
    data[one : one + size], data[other : other + size] = data[other : other + size], data[one : one + size]


def _join(rng: Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    other = rng.choice(corpus)
    start, end = sorted((rng.randrange(len(other) + 1), rng.randrange(len(other) + 1)))
    at = rng.randrange(len(data) + 1)
    data[at : at + rng.choice((0, end - start))] = other[start:end]


CHANGES: Sequence[Change] = (_flip, _byte, _cut, _truncate, _insert, _insert, _replace, _repeat, _swap, _join)


def inputs(corpus: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """Without end."""
    rng = Random(seed)
    while True:
        data = bytearray(rng.choice(corpus))
        for _ in range(rng.randint(1, ROUNDS)):
            rng.choice(CHANGES)(rng, data, corpus)
        yield bytes(data[:LONGEST])
