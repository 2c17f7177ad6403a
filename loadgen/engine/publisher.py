"""The ZMQ side of vLLM's KV events: a PUB socket with sequence numbers and a ROUTER socket that replays.

Owns sequence numbers, the replay buffer and the translation of the instance's events into those of the wire. Sequence
numbers start at 0 with every process and there is no snapshot: as with vLLM, who comes late asks for a replay.
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import zmq
import zmq.asyncio

from loadgen.engine import instance
from loadgen.engine.block_keys import ExtraKeys, as_int
from loadgen.engine.kv_events import Batch, BlockHash, Event, Format, Wire

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True, kw_only=True)
class TokenRequest(instance.Request):
    """A request whose tokens are known, as events need them."""

    tokens: array[int]  # prompt and reply
    extras: Sequence[ExtraKeys]  # of each block in `keys`
    lora: str | None = None
    lora_id: int | None = None


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where to publish, as in vLLM's `--kv-events-config`; `replay` None for no replay."""

    publish: str
    replay: str | None = None
    topic: str = ""


class Publisher:
    """Publishes batches of events. Use as an async context manager: it owns two sockets and a task."""

    def __init__(
        self,
        addresses: Addresses,
        block_size: int,
        style: Format = Format.MAPS,
        *,
        bytes_hashes: bool = False,
        replay_batches: int = 10_000,
    ) -> None:
        """`bytes_hashes`: 32-byte hashes in place of 64-bit integers. `replay_batches`: kept for a replay."""
        self._addresses = addresses
        self._block_size = block_size
        self._wire = Wire(style)
        self._bytes_hashes = bytes_hashes
        self._topic = addresses.topic.encode()
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=replay_batches)
        self._next = 0

    async def __aenter__(self) -> Publisher:
        """Open the sockets. Raises zmq.ZMQError where an address is taken or malformed."""
        self._context = zmq.asyncio.Context()
        try:
            self._publish = self._context.socket(zmq.PUB)
            self._publish.set_hwm(100_000)
            # As in vLLM: an address without a wildcard is somebody's to connect to, so that a router may bind.
            if any(mark in self._addresses.publish for mark in ("*", "::", "ipc://", "inproc://")):
                self._publish.bind(self._addresses.publish)
            else:
                self._publish.connect(self._addresses.publish)
            self._replay = self._context.socket(zmq.ROUTER)
            self._replay.set_hwm(2 * (self._buffer.maxlen or 0) + 2)
            if self._addresses.replay:
                self._replay.bind(self._addresses.replay)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._replaying = asyncio.create_task(self._answer_replays())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._replaying.cancel()
        await asyncio.gather(self._replaying, return_exceptions=True)
        self._context.destroy(linger=100)

    async def publish(self, events: Iterable[instance.Event[TokenRequest]]) -> None:
        """Publish the events of one step as one batch; none at all publishes nothing."""
        translated = [self._translate(event) for event in events]
        if not translated:
            return
        payload = self._wire.encode(Batch(time.time(), translated))
        sequence, self._next = self._next, self._next + 1
        self._buffer.append((sequence, payload))
        await self._publish.send_multipart([self._topic, sequence.to_bytes(8, "big"), payload])

    def _translate(self, event: instance.Event[TokenRequest]) -> Event:
        match event:
            case instance.Stored(request, first, count):
                size = self._block_size
                return self._wire.stored(
                    block_hashes=[self._hash(key) for key in event.keys],
                    parent_block_hash=None if event.parent is None else self._hash(event.parent),
                    token_ids=request.tokens[first * size : (first + count) * size].tolist(),
                    block_size=size,
                    lora_id=request.lora_id,
                    medium="GPU",
                    lora_name=request.lora,
                    extra_keys=request.extras[first : first + count],
                    group_idx=0,
                    kv_cache_spec_kind="full_attention",
                )
            case instance.Removed(key):
                return self._wire.removed(block_hashes=[self._hash(key)], medium="GPU", group_idx=0)
            case instance.Cleared():
                return self._wire.cleared()

    def _hash(self, key: object) -> BlockHash:
        assert isinstance(key, bytes)
        return key if self._bytes_hashes else as_int(key)

    async def _answer_replays(self) -> None:
        while True:
            frames = await self._replay.recv_multipart()
            if len(frames) != 3 or frames[1]:
                log.warning("replay request of %d frames dropped: identity, empty, sequence expected", len(frames))
                continue
            client, _, start = frames
            first = int.from_bytes(start, "big")
            for sequence, payload in list(self._buffer):
                if sequence >= first:
                    await self._replay.send_multipart([client, *self._wire.replayed(self._topic, sequence, payload)])
            await self._replay.send_multipart([client, *self._wire.replay_end()])
