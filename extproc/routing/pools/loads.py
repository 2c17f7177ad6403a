"""Requests in flight and what is left to prefill for them, per instance: synchronous and O(1), so every exit path pays.

A request counts from the decision until its ext_proc stream ends, and what its instance has to prefill for it until the
engine says that it is done (`prefills.py`). Where no engine says so it counts until the stream ends too: headers of a
streamed answer come before the prefill, and tell nothing. Where one instance prefills for another, its answer tells
(`PairTicket`). What other router replicas have in flight is merged in from outside (`load_exchange.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol

from extproc.base.load import IDLE, Load


class Follows(Protocol):
    """Whoever wants to know what becomes of a request: `prefills.Prefill`."""

    def moved(self, instance: str) -> None:
        """Envoy reached another instance than chosen."""

    def over(self) -> None:
        """The request is over, or nothing of its prefill is left."""


class Ticket:
    """One request's share of its instance's load. Its methods may be called any number of times, in any order."""

    __slots__ = ("_brief", "_follower", "_load", "_loads", "_where")

    def __init__(self, loads: Loads, where: tuple[str, str], load: Load) -> None:
        self._loads: Loads | None = loads
        self._where = where
        self._load = load
        self._follower: Follows | None = None
        self._brief = False

    def follow(self, follower: Follows) -> None:
        """Have the prefill followed, until it or the request is over."""
        self._follower = follower

    def brief(self) -> None:
        """The engine will say nothing of so short a prefill: the response's headers end it, which come about then."""
        self._brief = True

    def answered(self) -> None:
        """The response's headers came."""
        if self._brief:
            self.lower(0, 0.0)

    def lower(self, unprefilled: int, work_s: float) -> None:
        """So many bytes are left to prefill, and so much work."""
        if self._loads is None:
            return
        after = Load(self._load.requests, unprefilled, round(1e6 * work_s))
        self._loads._add(self._where, after.plus(self._load, -1))  # noqa: SLF001 - a ticket is part of Loads
        self._load = after
        if not unprefilled:
            self._unfollow()

    def move(self, instance: str) -> None:
        """Envoy reached another instance of the pool than chosen."""
        if self._loads is not None and instance != self._where[1]:
            self._loads._add(self._where, IDLE.plus(self._load, -1))  # noqa: SLF001
            self._where = (self._where[0], instance)
            self._loads._add(self._where, self._load)  # noqa: SLF001
            if self._follower is not None:
                self._follower.moved(instance)

    def release(self) -> None:
        """The request is over, however it ended."""
        if self._loads is not None:
            self._loads._add(self._where, IDLE.plus(self._load, -1))  # noqa: SLF001
            self._loads = None
            self._unfollow()

    def _unfollow(self) -> None:
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.over()


class PairTicket:
    """The load that a halved request holds on both of its instances; a `Ticket` to whoever gives it back."""

    __slots__ = ("_decode", "_prefill")

    def __init__(self, prefill: Ticket, decode: Ticket) -> None:
        self._prefill = prefill
        self._decode = decode

    def prefilled(self) -> None:
        """The prefill instance is done with the request."""
        self._prefill.release()

    def move(self, instance: str) -> None:
        """Envoy reached another decode instance than chosen."""
        self._decode.move(instance)

    def release(self) -> None:
        """The request is over, however it ended."""
        self._prefill.release()
        self._decode.release()


class Loads:
    """The loads of all pools: this process's own, and what its peers last said of theirs."""

    def __init__(self) -> None:
        self._own: dict[str, dict[str, Load]] = defaultdict(dict)
        self._told: dict[str, Mapping[str, Load]] = {}  # what peers were last told of it
        self._peers: dict[tuple[str, str], Mapping[str, Load]] = {}

    def start(self, pool: str, instance: str, prefill: int, work_s: float = 0.0) -> Ticket:
        """Count one request with `prefill` bytes that the instance has not cached, and the seconds that these take."""
        load = Load(1, prefill, round(1e6 * work_s))
        self._add((pool, instance), load)
        return Ticket(self, (pool, instance), load)

    def view(self, pool: str, instances: Sequence[str]) -> tuple[list[int], list[int]]:
        """Requests in flight and unprefilled bytes of each instance, over all replicas."""
        totals = self.totals(pool, instances)
        return [load.requests for load in totals], [load.unprefilled for load in totals]

    def snapshot(self, pool: str) -> Mapping[str, Load]:
        """This process's own by instance; idle instances are absent.

        Whoever asks tells the peers: until the next call, they do not know of what is started from now on.
        """
        self._told[pool] = told = dict(self._own[pool])
        return told

    def merge(self, replica: str, pool: str, counts: Mapping[str, Load]) -> None:
        """Replace what is known of a peer's loads."""
        self._peers[replica, pool] = counts

    def drop(self, replica: str) -> None:
        """Forget a peer that fell silent."""
        for key in [key for key in self._peers if key[0] == replica]:
            del self._peers[key]

    def totals(self, pool: str, instances: Sequence[str]) -> list[Load]:
        """The load of each instance, over all replicas."""
        own, told = self._own[pool], self._told.get(pool, {})
        totals = [own.get(instance, IDLE) for instance in instances]
        peers = sum(peer_pool == pool for _, peer_pool in self._peers)
        if peers:
            # Peers see the same idle instance at this moment: until they hear of it, take it that each did what we did.
            for i, instance in enumerate(instances):
                if totals[i] is not IDLE:
                    totals[i] = totals[i].plus(totals[i].beyond(told.get(instance, IDLE)), peers)
        for (_, peer_pool), counts in self._peers.items():
            if peer_pool == pool and counts:
                for i, instance in enumerate(instances):
                    if instance in counts:
                        totals[i] = totals[i].plus(counts[instance])
        return totals

    def _add(self, where: tuple[str, str], load: Load) -> None:
        pool, instance = where
        own = self._own[pool]
        after = own.get(instance, IDLE).plus(load)
        if after == IDLE:
            own.pop(instance, None)
        else:
            own[instance] = after
