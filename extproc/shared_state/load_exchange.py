"""What router replicas tell each other through Redis about their loads: the requests that each has in flight.

It owns the exchange of loads; it knows neither events nor policies. Nothing here raises while Redis is away: peers fall
silent and are dropped, and come back by themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from functools import partial
from typing import Protocol

import msgspec
from redis.asyncio import Redis

from extproc.base.errors import IndexUnavailable
from extproc.base.load import IDLE, Load
from extproc.shared_state.connections import CONNECT_S, Client, close, connect_to_one
from extproc.shared_state.link import Link, attempt_to_hear
from extproc.shared_state.redis_url import parse
from extproc.shared_state.standing import Use, with_redis

_log = logging.getLogger(__name__)

SCHEMA = 2  # of the messages, part of their channel's name: routers of another version are ignored

TICK_S = 0.005  # between two messages; what two routers decide within this time, they decide without each other
ALONE_S = 0.1  # between two looks whether there is a peer
WHOLE_S = 1.0  # between two complete messages, which repair lost ones and show that we live
RETRY_S = 0.25  # between two attempts to reach Redis
SILENCE_S = 3.0  # after which a peer is taken for dead
MAX_PEERS = 256


class SharedLoads(Protocol):
    """The loads of this process and its peers: `routing/pools/loads.py`."""

    def snapshot(self, pool: str) -> Mapping[str, Load]:
        """This process's own, by instance name; idle instances are absent."""

    def merge(self, replica: str, pool: str, counts: Mapping[str, Load]) -> None:
        """Replace what is known of a peer's loads in a pool."""

    def drop(self, replica: str) -> None:
        """Forget a peer."""


class _Message(msgspec.Struct, array_like=True):
    replica: str
    whole: bool  # whether what is not mentioned is idle, or as it was
    pools: Mapping[str, Mapping[str, Load]]


class _Peer:
    def __init__(self) -> None:
        self.heard = 0.0
        self.counts: dict[str, dict[str, Load]] = {}


class LoadExchange:
    """Tells the peers this process's loads a few milliseconds after they change, and keeps theirs in `loads`.

    Over publish/subscribe, which may lose messages: counts are absolute, and a complete message repairs what was lost.
    While there is no peer, only those are sent.
    """

    def __init__(
        self,
        client: Redis,
        replica: str,
        loads: SharedLoads,
        pools: Collection[str],
        *,
        namespace: str,
    ) -> None:
        self._client = client
        self._link = Link(client, 1, namespace)
        self._standing = with_redis(client, namespace)
        self._channel = _channel(namespace)
        self._replica = replica
        self._loads = loads
        self._pools = pools
        self._peers: dict[str, _Peer] = {}
        self._reported = False
        self._newcomer = False  # a peer appeared that has not heard from us
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(_Message).decode

    @classmethod
    def from_url(cls, url: str, replica: str, loads: SharedLoads, pools: Collection[str]) -> LoadExchange:
        """`pools` may change. See `redis_url.parse`; in a cluster, messages reach every node. Raises ConfigError."""
        address = parse(url)
        return cls(connect_to_one(address, 2), replica, loads, pools, namespace=address.namespace)

    @property
    def peers(self) -> frozenset[str]:
        """The replicas whose loads are known."""
        return frozenset(self._peers)

    async def run(self) -> None:
        """Exchange loads until cancelled; then disconnect."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._publish())
                tasks.create_task(self._listen())
                tasks.create_task(self._drop_silent())
        finally:
            await self._link.close()
            await close(self._client)

    async def _publish(self) -> None:
        loop = asyncio.get_running_loop()
        said: dict[str, Mapping[str, Load]] = {}
        whole_due = 0.0
        while True:
            await asyncio.sleep(TICK_S if self._peers else ALONE_S)
            whole = self._newcomer or loop.time() >= whole_due
            if not whole and not self._peers:
                continue
            counts = {pool: self._loads.snapshot(pool) for pool in self._pools}
            news = counts if whole else {pool: _changes(said.get(pool, {}), counts[pool]) for pool in counts}
            if not whole and not any(news.values()):
                continue
            self._newcomer = False
            try:
                await self._link.run(
                    "publish_loads", CONNECT_S, partial(self._send, _Message(self._replica, whole, news))
                )
            except IndexUnavailable:
                whole_due = loop.time() + RETRY_S
                continue
            said = counts
            if whole:
                whole_due = loop.time() + WHOLE_S

    async def _send(self, message: _Message, client: Client) -> None:
        await client.execute_command("PUBLISH", self._channel, self._encode(message))

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with attempt_to_hear(self._standing, "hear_loads"):
                async with self._client.pubsub(ignore_subscribe_messages=True) as channel:
                    async with asyncio.timeout(CONNECT_S):
                        await channel.subscribe(self._channel)
                        await channel.get_message(timeout=None)  # that it may
                    heard, moves = loop.time(), self._standing.moves
                    # We hear ourselves too: silence means that the connection is dead.
                    while loop.time() - heard < SILENCE_S and moves == self._standing.moves:
                        message = await channel.get_message(timeout=RETRY_S)
                        if self._standing.refused:
                            self._standing.allows(Use("hear_loads"), loop.time())
                        if message is not None:
                            heard = loop.time()
                            self._hear(message["data"], heard)
            await asyncio.sleep(RETRY_S)

    async def _drop_silent(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(RETRY_S)
            for replica in [name for name, peer in self._peers.items() if loop.time() - peer.heard > SILENCE_S]:
                _log.warning("router replica %s fell silent; its loads no longer count", replica)
                del self._peers[replica]
                self._loads.drop(replica)

    def _hear(self, data: bytes, now: float) -> None:
        try:
            message = self._decode(data)
        except msgspec.MsgspecError as error:
            if not self._reported:
                _log.warning("messages on %s that no router of ours sent: %s", self._channel, error)
            self._reported = True
            return
        if message.replica == self._replica:
            return
        peer = self._peers.get(message.replica)
        if peer is None:
            if len(self._peers) >= MAX_PEERS:
                return
            peer = self._peers[message.replica] = _Peer()
            self._newcomer = True
        peer.heard = now
        for pool in self._pools:
            if message.whole or pool in message.pools:
                before = {} if message.whole else peer.counts.get(pool, {})
                counts = {**before, **message.pools.get(pool, {})}
                peer.counts[pool] = {instance: count for instance, count in counts.items() if count != IDLE}
                self._loads.merge(message.replica, pool, peer.counts[pool])


async def try_exchange(client: Client, *, namespace: str) -> None:
    """Say nothing on a channel that nobody hears. Raises what redis-py raises."""
    await client.execute_command("PUBLISH", f"{_channel(namespace)}:check", b"")


async def try_to_hear(client: Redis, *, namespace: str) -> None:
    """Listen to the channel for a moment. Raises what redis-py raises."""
    async with client.pubsub() as channel:
        await channel.subscribe(_channel(namespace))
        await channel.get_message(timeout=CONNECT_S)


def _channel(namespace: str) -> str:
    return f"{namespace}:{SCHEMA}:loads"


def _changes(before: Mapping[str, Load], after: Mapping[str, Load]) -> Mapping[str, Load]:
    changed = {instance: count for instance, count in after.items() if before.get(instance) != count}
    return changed | {instance: IDLE for instance in before if instance not in after}
