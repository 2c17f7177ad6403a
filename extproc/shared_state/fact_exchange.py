"""What engines said, from the processes that follow them to all routers: publish/subscribe, which may lose messages.

It owns the message and what waits to be sent; it knows neither hints nor events. One small message carries all that
was said within a tick. Nothing grows while Redis is away: what cannot be sent is dropped, and guesses end by time.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Annotated

import msgspec
from redis.asyncio import Redis

from extproc.base.errors import IndexUnavailable
from extproc.base.facts import Fact
from extproc.shared_state.connections import CONNECT_S, Client, close, connect_to_one
from extproc.shared_state.link import Link, attempt_to_hear
from extproc.shared_state.redis_url import parse
from extproc.shared_state.standing import Use, with_redis

_log = logging.getLogger(__name__)

SCHEMA = 1  # of the messages, part of their channel's name: routers of another version are ignored
TICK_S = 0.002  # engines speak once a step, some tens of milliseconds; a busy pool's words are joined
MAX_STORED = 256  # keys of one instance in a message; with more the older ones are left out, and end by time
MAX_INSTANCES = 4096  # that wait to be sent
RETRY_S = 0.25  # between two attempts to listen
SILENCE_S = 3.0  # without a word, after which we ask whether the connection lives; after as long again it is given up

Hear = Callable[[str, Fact], None]  # of a pool, by its name


class _Said(msgspec.Struct, array_like=True):
    pool: str
    instance: str
    lost: bool
    stored: bytes  # keys as unsigned 64-bit integers, little-endian as every machine that runs this
    span: int
    age_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class FactPublisher:
    """Tells all routers what the engines that this process follows said."""

    def __init__(self, client: Client, *, namespace: str) -> None:
        self._client = client
        self._link = Link(client, 1, namespace)
        self._channel = f"{namespace}:{SCHEMA}:facts"
        self._waiting: dict[tuple[str, str], Fact] = {}
        self._some = asyncio.Event()
        self._encode = msgspec.msgpack.Encoder().encode

    @classmethod
    def from_url(cls, url: str) -> FactPublisher:
        """See `redis_url.parse`. Raises ConfigError."""
        address = parse(url)
        return cls(connect_to_one(address, 1), namespace=address.namespace)

    def tell(self, pool: str, fact: Fact) -> None:
        """Have it sent soon; returns at once."""
        where = pool, fact.instance
        before = self._waiting.get(where)
        if before is not None and not fact.lost:
            joined = [*before.stored, *fact.stored][-MAX_STORED:]
            fact = fact._replace(lost=before.lost, stored=joined, age_s=min(before.age_s, fact.age_s))
        elif before is None and len(self._waiting) >= MAX_INSTANCES:
            return
        self._waiting[where] = fact._replace(stored=fact.stored[-MAX_STORED:])
        self._some.set()

    async def run(self) -> None:
        """Send until cancelled; then disconnect."""
        try:
            while True:
                await self._some.wait()
                await asyncio.sleep(TICK_S)
                waiting, self._waiting = self._waiting, {}
                self._some.clear()
                with suppress(IndexUnavailable):
                    await self._link.run("publish_facts", CONNECT_S, partial(self._send, self._encode(_said(waiting))))
        finally:
            await self._link.close()
            await close(self._client)

    async def _send(self, message: bytes, client: Client) -> None:
        await client.execute_command("PUBLISH", self._channel, message)


class FactListener:
    """Hears what the followers of engines tell, and passes it on."""

    def __init__(self, client: Redis, hear: Hear, *, namespace: str) -> None:
        self._client = client
        self._standing = with_redis(client, namespace)
        self._hear = hear
        self._channel = f"{namespace}:{SCHEMA}:facts"
        self._reported = False
        self._decode = msgspec.msgpack.Decoder(list[_Said]).decode

    @classmethod
    def from_url(cls, url: str, hear: Hear) -> FactListener:
        """See `redis_url.parse`; in a cluster, messages reach every node. Raises ConfigError."""
        address = parse(url)
        return cls(connect_to_one(address, 1), hear, namespace=address.namespace)

    async def run(self) -> None:
        """Listen until cancelled; then disconnect."""
        try:
            while True:
                with attempt_to_hear(self._standing, "hear_facts"):
                    await self._listen()
                await asyncio.sleep(RETRY_S)
        finally:
            await close(self._client)

    async def _listen(self) -> None:
        async with self._client.pubsub(ignore_subscribe_messages=True) as channel:
            async with asyncio.timeout(CONNECT_S):
                await channel.subscribe(self._channel)
                await channel.get_message(timeout=None)  # that it may
            asked, moves = False, self._standing.moves
            while moves == self._standing.moves:
                message = await channel.get_message(timeout=SILENCE_S)
                if self._standing.refused:
                    self._standing.allows(Use("hear_facts"), asyncio.get_running_loop().time())
                if message is None and asked:
                    return  # a connection may die without anybody being told
                if message is None:
                    await channel.ping()
                elif message["type"] == "message":
                    self._take(message["data"])
                asked = message is None

    def _take(self, data: bytes) -> None:
        try:
            facts = [(said.pool, _fact(said)) for said in self._decode(data)]
        except (msgspec.MsgspecError, ValueError) as error:
            if not self._reported:
                _log.warning("messages on %s that no router of ours sent: %s", self._channel, error)
            self._reported = True
            return
        for pool, fact in facts:
            self._hear(pool, fact)


def _said(waiting: dict[tuple[str, str], Fact]) -> list[_Said]:
    return [
        _Said(pool, instance, fact.lost, array("Q", fact.stored).tobytes(), fact.span, fact.age_s)
        for (pool, instance), fact in waiting.items()
    ]


def _fact(said: _Said) -> Fact:
    keys = array("Q")
    keys.frombytes(said.stored)
    return Fact(said.instance, said.lost, keys, said.span, said.age_s)
