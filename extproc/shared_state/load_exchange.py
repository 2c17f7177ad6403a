"""What router replicas tell each other through Redis: who follows which instance's events, and what each has in flight.

It owns the leases and the exchange of loads; it knows neither events nor policies. Nothing here raises when Redis is
away: leases stay as they were, peers fall silent and are dropped, and both come back alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, NamedTuple, Protocol
from urllib.parse import quote

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from extproc.base.errors import IndexUnavailable
from extproc.shared_state.link import CONNECT_S, Argument, Client, Link, Script, connect, connect_to_one, parse

_log = logging.getLogger(__name__)

SCHEMA = 1  # of the messages and of the leases, part of their names: routers of another one are strangers

RENEW_S = 0.75  # how often a follower calls `Leases.renew`
LEASE_S = 2.5  # two renewals may fail; with the next follower's renewal, a takeover takes 3.25 s at most
LEASE_BUDGET_S = 0.5

TICK_S = 0.005  # between two messages; what two routers decide within it, they decide without each other
ALONE_S = 0.1  # between two looks whether there is somebody to talk to
WHOLE_S = 1.0  # between two complete messages, which repair lost ones and say that we live
RETRY_S = 0.25  # between two attempts to reach Redis
SILENCE_S = 3.0  # after which a peer is taken for dead
MAX_PEERS = 256

_RENEW, _RELEASE = (Script.read("extproc.shared_state", name, keys=1) for name in ("renew", "release"))


class _Held(NamedTuple):
    names: frozenset[str]
    wanted: frozenset[str]
    members: int
    free: frozenset[str]
    lapsed: bool = False  # Redis could not be asked since


_NONE = _Held(frozenset(), frozenset(), 0, frozenset())


class Leases:
    """Which instances' events this replica follows: each is held by one replica at a time, about as many by each.

    A replica that hangs, or does not reach Redis, may follow on beside its successor until it hears of it; the index
    then refuses its writes (`IndexLost`), or its successor's, which writes everything again.
    """

    def __init__(self, client: Client, replica: str, *, namespace: str) -> None:
        self._client = client
        self._link = Link(client, 1)
        self._replica = replica
        self._namespace = namespace
        self._pools: dict[str, _Held] = {}

    @classmethod
    def from_url(cls, url: str, replica: str) -> Leases:
        """See `redis_link.parse`. `replica` is unlike that of every other process. Raises ConfigError."""
        address = parse(url)
        return cls(connect(address, 1), replica, namespace=address.namespace)

    async def renew(self, pool: str, wanted: Collection[str]) -> frozenset[str]:
        """Which of the wanted instances to follow until the next call, in RENEW_S.

        While Redis is away these are the ones held before: to follow an engine anew costs a replay of all its events.
        When it is back everybody first asks for those alone, so that nobody takes what another kept.
        """
        before = self._pools.get(pool, _NONE)
        names = frozenset(wanted)
        asked = before.names & names if before.lapsed else names
        orphans = sorted(asked if before.lapsed else before.free & names)
        members = before.members if names == before.wanted else 0
        call: list[Argument] = [self._key(pool), self._replica, int(LEASE_S * 1000), members]
        call += [len(orphans), *orphans, *sorted(asked)]
        try:
            answer = await self._link.run("renew", LEASE_BUDGET_S, lambda client: _RENEW.run(client, call))
        except IndexUnavailable:
            self._pools[pool] = before._replace(lapsed=True)
            return before.names & names
        held, free = (frozenset(name.decode() for name in part) for part in answer[1:])
        self._pools[pool] = _Held(held, names, answer[0], free)
        return held

    async def close(self) -> None:
        """Give everything back, so that others need not wait for it, and disconnect."""
        for pool in self._pools:
            call = partial(_RELEASE.run, keys_and_arguments=[self._key(pool), self._replica])
            with suppress(IndexUnavailable):
                await self._link.run("release", LEASE_BUDGET_S, call)
        await self._link.close()
        with suppress(Exception):  # the connection is given up in any case
            await self._client.aclose()

    def _key(self, pool: str) -> str:
        return f"{self._namespace}:{SCHEMA}:{{{quote(pool, safe='')}}}:leases"


class SharedLoads(Protocol):
    """The loads of this process and its peers (`loads.py`). Counts are (requests in flight, unprefilled bytes)."""

    def snapshot(self, pool: str) -> Mapping[str, tuple[int, int]]:
        """This process's own, by instance name; idle instances are absent."""

    def merge(self, replica: str, pool: str, counts: Mapping[str, tuple[int, int]]) -> None:
        """Replace what is known of a peer's loads in a pool."""

    def drop(self, replica: str) -> None:
        """Forget a peer."""


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Message(msgspec.Struct, array_like=True):
    replica: str
    whole: bool  # whether what is not mentioned is idle, or as it was
    pools: Mapping[str, Mapping[str, tuple[_Count, _Count]]]


class _Peer:
    def __init__(self) -> None:
        self.heard = 0.0
        self.counts: dict[str, dict[str, tuple[int, int]]] = {}


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
        pools: Sequence[str],
        *,
        namespace: str,
    ) -> None:
        self._client = client
        self._link = Link(client, 1)
        self._channel = f"{namespace}:{SCHEMA}:loads"
        self._replica = replica
        self._loads = loads
        self._pools = pools
        self._peers: dict[str, _Peer] = {}
        self._reported = False
        self._newcomer = False  # a peer appeared that has not heard from us
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(_Message).decode

    @classmethod
    def from_url(cls, url: str, replica: str, loads: SharedLoads, pools: Sequence[str]) -> LoadExchange:
        """See `redis_link.parse`; in a cluster, messages reach every node. Raises ConfigError."""
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
            with suppress(Exception):  # the connections are given up in any case
                await self._client.aclose()

    async def _publish(self) -> None:
        loop = asyncio.get_running_loop()
        said: dict[str, Mapping[str, tuple[int, int]]] = {}
        whole_due = 0.0
        while True:
            await asyncio.sleep(TICK_S if self._peers else ALONE_S)
            whole = self._newcomer or loop.time() >= whole_due
            if not whole and not self._peers:
                continue
            counts = {pool: self._loads.snapshot(pool) for pool in self._pools}
            news = counts if whole else {pool: _changes(said[pool], counts[pool]) for pool in self._pools}
            if not whole and not any(news.values()):
                continue
            self._newcomer = False
            try:
                await self._link.run("publish", CONNECT_S, partial(self._send, _Message(self._replica, whole, news)))
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
            with suppress(RedisError, OSError, TimeoutError):
                async with self._client.pubsub(ignore_subscribe_messages=True) as channel:
                    async with asyncio.timeout(CONNECT_S):
                        await channel.subscribe(self._channel)
                    heard = loop.time()
                    # We hear ourselves too: silence means that the connection is dead.
                    while loop.time() - heard < SILENCE_S:
                        message = await channel.get_message(timeout=RETRY_S)
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
                peer.counts[pool] = {instance: count for instance, count in counts.items() if count != (0, 0)}
                self._loads.merge(message.replica, pool, peer.counts[pool])


def _changes(
    before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]]
) -> Mapping[str, tuple[int, int]]:
    changed = {instance: count for instance, count in after.items() if before.get(instance) != count}
    return changed | {instance: (0, 0) for instance in before if instance not in after}
