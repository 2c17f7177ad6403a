"""Engines whose events flood, lie, or never end. Each binds `port` and publishes there until it is killed."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import zmq

_encode = msgspec.msgpack.encode
FLOOD_BLOCKS = 16  # a message
STORED_BLOCKS = 512  # a message
BLOCK = 16  # tokens
BIG_IDS = 1_000_000  # token ids of one event
ENDLESS_FRAME = 8 << 20
ENDLESS_PAUSE_S = 0.05


def _stored(hashes: Sequence[Any], tokens: Sequence[Any], parent: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
    } | more


def _batch(*events: Any) -> bytes:
    return _encode([time.time(), list(events), 0])


@contextlib.contextmanager
def _publisher(port: int) -> Iterator[Callable[..., None]]:
    """Sends a payload with the next number, or one of its own."""
    with zmq.Context() as context, context.socket(zmq.PUB) as pub:
        pub.setsockopt(zmq.SNDHWM, 50)
        pub.setsockopt(zmq.XPUB_NODROP, 1)  # as fast as it is taken, and no faster
        pub.setsockopt(zmq.LINGER, 0)
        pub.bind(f"tcp://127.0.0.1:{port}")
        numbers = itertools.count()

        def send(payload: bytes, number: int | None = None) -> None:
            chosen = next(numbers) if number is None else number
            pub.send_multipart([b"", chosen.to_bytes(8, "big", signed=True), payload])

        yield send


def flood(port: int) -> None:
    """Distinct blocks without end."""
    hashes = itertools.count(1)
    tokens = [100] * (BLOCK * FLOOD_BLOCKS)
    with _publisher(port) as send:
        while True:
            send(_batch(_stored([next(hashes) for _ in range(FLOOD_BLOCKS)], tokens)))


def stores(port: int, blocks_a_second: float) -> None:
    """Distinct blocks at a steady rate, in messages as large as a long prefill's."""
    hashes = itertools.count(1)
    tokens = [100] * (BLOCK * STORED_BLOCKS)
    began, sent = time.monotonic(), 0
    with _publisher(port) as send:
        while True:
            if sent > blocks_a_second * (time.monotonic() - began):
                time.sleep(0.001)
                continue
            send(_batch(_stored([next(hashes) for _ in range(STORED_BLOCKS)], tokens)))
            sent += STORED_BLOCKS


def clears(port: int) -> None:
    """A cache that is emptied every moment: an engine whose cache is known."""
    with _publisher(port) as send:
        while True:
            send(_batch({"type": "AllBlocksCleared"}))
            time.sleep(0.2)


def single(port: int) -> None:
    """Blocks one by one, each with its own message."""
    hashes = itertools.count(1)
    with _publisher(port) as send:
        while True:
            send(_batch(_stored([next(hashes)], [100] * BLOCK)))


def heavy(port: int) -> None:
    """Events of a million token ids in one block, and of as many hashes without tokens."""
    ids = _batch(_stored([1], [1] * BIG_IDS, block_size=BIG_IDS))
    hashes = _batch(_stored(list(range(BIG_IDS // 4)), []))
    many = _batch(*[_stored([one], [1, 2], block_size=2) for one in range(20_000)])
    with _publisher(port) as send:
        for payload in itertools.cycle((ids, hashes, many)):
            send(payload)


def garbage(port: int) -> None:
    """Bytes by chance, and messages of the wrong number of frames."""
    with _publisher(port) as send:
        while True:
            send(os.urandom(random.randrange(1, 4_000)))


def nonsense(port: int) -> None:
    """Well-formed messages that mean nothing: numbers that fall and jump, parents that are their own children."""
    tokens = [1] * BLOCK
    cases = [
        _encode([float("nan"), [_stored([1], tokens)], 0]),
        _batch(_stored([2], tokens, block_size=-16)),
        _batch(_stored([3], [], block_size=0)),
        _batch(_stored([4], tokens, block_size=2**62)),
        _batch(_stored(["a"], tokens)),
        _batch(_stored([5], ["x"] * BLOCK)),
        _batch(_stored([6], [-1] * BLOCK)),
        _batch(_stored([7], tokens, parent=7)),
        _batch(_stored([8, 8], tokens * 2)),
        _batch(_stored([b"x" * 5_000], tokens)),
        _batch(_stored([9], tokens, group_idx=2**60, kv_cache_spec_kind="sliding_window")),
        _batch(_stored([10], tokens, kv_cache_spec_kind="sliding_window", kv_cache_spec_sliding_window=2**62)),
        _batch({"type": "BlockRemoved", "block_hashes": [999]}),
        _batch({"type": "Nope"}),
        _batch({"type": "AllBlocksCleared"}),
        _encode(None),
        b"",
        b"\x91" * 3_000,
        b"\xdd\xff\xff\xff\xff",
    ]
    with _publisher(port) as send:
        for payload in itertools.cycle(cases):
            send(payload, random.choice((None, None, 0, 5, -1, 2**63 - 1)))
            time.sleep(0.002)


def endless(port: int) -> None:
    """A ZMTP peer whose one message never ends."""
    with socket.create_server(("127.0.0.1", port)) as server:
        while True:
            client, _ = server.accept()
            threading.Thread(target=_endless, args=(client,), daemon=True).start()


def _endless(client: socket.socket) -> None:
    greeting = b"\xff" + b"\0" * 8 + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" + b"\0" * 31
    ready = b"\x05READY\x0bSocket-Type\0\0\0\x03PUB"
    frame = b"\x03" + struct.pack(">Q", ENDLESS_FRAME) + b"x" * ENDLESS_FRAME  # a long one, and more to come
    with client, contextlib.suppress(OSError):
        client.sendall(greeting)
        heard = 0
        while heard < len(greeting):
            heard += len(client.recv(1_000))
        client.sendall(b"\x04" + bytes([len(ready)]) + ready)
        while True:
            client.sendall(frame)
            time.sleep(ENDLESS_PAUSE_S)


def losses(port: int, engine: str, seed: int) -> None:
    """A real engine's events, of which some are lost and some come twice."""
    rng = random.Random(seed)
    with zmq.Context() as context, context.socket(zmq.SUB) as heard, context.socket(zmq.PUB) as pub:
        heard.subscribe(b"")
        heard.connect(engine)
        pub.setsockopt(zmq.LINGER, 0)
        pub.bind(f"tcp://127.0.0.1:{port}")
        while True:
            frames = heard.recv_multipart()
            for _ in range(rng.choice((0, 1, 1, 1, 2))):
                pub.send_multipart(frames)


ATTACKS: Mapping[str, Callable[..., None]] = {
    "flood": flood,
    "single": single,
    "stores": stores,
    "clears": clears,
    "heavy": heavy,
    "garbage": garbage,
    "nonsense": nonsense,
    "endless": endless,
    "losses": losses,
}
