"""Requests in flight and bytes to prefill for them, per instance: synchronous and O(1), so every exit path pays back.

A request counts from the decision until its ext_proc stream ends, and so does what its instance has to prefill for it:
an engine sends the headers of a streamed answer before it prefills, so nothing tells when that is done. Where one
instance prefills for another, its answer does (`PairTicket`). What other router replicas have in flight is merged in
from outside (`load_exchange.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence


class Ticket:
    """One request's share of its instance's load. Its methods may be called any number of times, in any order."""

    __slots__ = ("_loads", "_prefill", "_where")

    def __init__(self, loads: Loads, where: tuple[str, str], prefill: int) -> None:
        self._loads: Loads | None = loads
        self._where = where
        self._prefill = prefill

    def move(self, instance: str) -> None:
        """Envoy reached another instance of the pool than chosen."""
        if self._loads is not None and instance != self._where[1]:
            self._loads._add(self._where, -1, -self._prefill)  # noqa: SLF001 - a ticket is part of Loads
            self._where = (self._where[0], instance)
            self._loads._add(self._where, 1, self._prefill)  # noqa: SLF001

    def release(self) -> None:
        """The request is over, however it ended."""
        if self._loads is not None:
            self._loads._add(self._where, -1, -self._prefill)  # noqa: SLF001
            self._loads = None


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
        self._own: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
        self._told: dict[str, Mapping[str, tuple[int, int]]] = {}  # what peers were last told of it
        self._peers: dict[tuple[str, str], Mapping[str, tuple[int, int]]] = {}

    def start(self, pool: str, instance: str, prefill: int) -> Ticket:
        """Count one request with `prefill` bytes that the instance has not cached."""
        self._add((pool, instance), 1, prefill)
        return Ticket(self, (pool, instance), prefill)

    def view(self, pool: str, instances: Sequence[str]) -> tuple[list[int], list[int]]:
        """Requests in flight and unprefilled bytes of each instance, over all replicas."""
        totals = self._totals(pool, instances)
        return [requests for requests, _ in totals], [prefill for _, prefill in totals]

    def snapshot(self, pool: str) -> Mapping[str, tuple[int, int]]:
        """This process's own (requests in flight, unprefilled bytes) by instance; idle instances are absent.

        Whoever asks tells the peers: until the next call, they do not know of what is started from now on.
        """
        self._told[pool] = told = dict(self._own[pool])
        return told

    def merge(self, replica: str, pool: str, counts: Mapping[str, tuple[int, int]]) -> None:
        """Replace what is known of a peer's loads."""
        self._peers[replica, pool] = counts

    def drop(self, replica: str) -> None:
        """Forget a peer that fell silent."""
        for key in [key for key in self._peers if key[0] == replica]:
            del self._peers[key]

    def _totals(self, pool: str, instances: Sequence[str]) -> list[tuple[int, int]]:
        idle = (0, 0)
        own, told = self._own[pool], self._told.get(pool, {})
        totals = [own.get(instance, idle) for instance in instances]
        peers = sum(peer_pool == pool for _, peer_pool in self._peers)
        if peers:
            # Peers see the same idle instance at this moment: until they hear of it, take it that each did what we did.
            for i, instance in enumerate(instances):
                requests, prefill = totals[i]
                known = told.get(instance, idle)
                unheard = max(0, requests - known[0]), max(0, prefill - known[1])
                totals[i] = (requests + peers * unheard[0], prefill + peers * unheard[1])
        for (_, peer_pool), counts in self._peers.items():
            if peer_pool == pool and counts:
                for i, instance in enumerate(instances):
                    if instance in counts:
                        requests, prefill = counts[instance]
                        totals[i] = (totals[i][0] + requests, totals[i][1] + prefill)
        return totals

    def _add(self, where: tuple[str, str], requests: int, prefill: int) -> None:
        pool, instance = where
        own = self._own[pool]
        before = own.get(instance, (0, 0))
        after = (before[0] + requests, before[1] + prefill)
        if after == (0, 0):
            own.pop(instance, None)
        else:
            own[instance] = after
