"""Who follows which instance's events: each instance is leased by one follower at a time, about as many by each.

It knows neither events nor loads. Nothing here raises while Redis is away: leases stay as they were.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import NamedTuple
from urllib.parse import quote

from extproc.base.errors import IndexUnavailable
from extproc.shared_state.connections import Client, close, connect
from extproc.shared_state.link import Link
from extproc.shared_state.redis_url import parse
from extproc.shared_state.script import Argument, Script

SCHEMA = 1  # of the leases, part of their key: followers of another version are ignored

RENEW_S = 0.75  # how often a follower calls `Leases.renew`
LEASE_S = 2.5  # two renewals may fail; with the next follower's renewal, a takeover takes 3.25 s at most
LEASE_BUDGET_S = 0.5

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

    A replica that hangs, or does not reach Redis, may follow on beside its successor until it knows; the index then
    refuses the writes of one of the two (`IndexLost`), which then rewrites everything.
    """

    def __init__(self, client: Client, replica: str, *, namespace: str) -> None:
        self._client = client
        self._link = Link(client, 1, namespace)
        self._replica = replica
        self._namespace = namespace
        self._pools: dict[str, _Held] = {}

    @classmethod
    def from_url(cls, url: str, replica: str) -> Leases:
        """See `redis_url.parse`. `replica` is unlike that of every other process. Raises ConfigError."""
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
        call: list[Argument] = [_key(self._namespace, pool), self._replica, int(LEASE_S * 1000), members]
        call += [len(orphans), *orphans, *sorted(asked)]
        try:
            answer = await self._link.run("renew", LEASE_BUDGET_S, lambda client: _RENEW.run(client, call), pool)
        except IndexUnavailable:
            self._pools[pool] = before._replace(lapsed=True)
            return before.names & names
        held, free = (frozenset(name.decode() for name in part) for part in answer[1:])
        self._pools[pool] = _Held(held, names, answer[0], free)
        return held

    async def close(self) -> None:
        """Give all leases back, so that others need not wait for them, and disconnect."""
        for pool in self._pools:
            call = partial(_RELEASE.run, keys_and_arguments=[_key(self._namespace, pool), self._replica])
            with suppress(IndexUnavailable):
                await self._link.run("release", LEASE_BUDGET_S, call, pool)
        await self._link.close()
        await close(self._client)


async def try_leases(client: Client, *, pool: str, namespace: str) -> None:
    """Lease an instance of a pool that nobody has, and give it back. Raises what redis-py raises."""
    key = _key(namespace, pool)
    await _RENEW.run(client, [key, "check", int(LEASE_S * 1000), 0, 0, "check"])
    await _RELEASE.run(client, [key, "check"])


def _key(namespace: str, pool: str) -> str:
    return f"{namespace}:{SCHEMA}:{{{quote(pool, safe='')}}}:leases"
