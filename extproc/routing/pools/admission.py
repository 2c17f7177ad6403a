"""Which instances may take a request at all: the gateway's subset hint, and the load at which a pool sheds.

Owns how an endpoint is written ("ip" or "ip:port", IPv6 bracketed or not) and when two spellings mean the same one.
Refuses to know where a hint comes from and which of the admitted instances is best.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from extproc.base.model import Instance

IP = IPv4Address | IPv6Address


class Subset:
    """A set of endpoints; one written without a port stands for every port of its address.

    An entry that is no endpoint admits no instance, so an unreadable hint is an empty one and not a missing one:
    a gateway that sends a hint wants the request nowhere else.
    """

    __slots__ = ("_endpoints",)

    def __init__(self, written: Iterable[str]) -> None:
        """`written` holds endpoints, each of which may be a list joined by commas."""
        names = (name.strip() for one in written for name in one.split(","))
        self._endpoints = frozenset(endpoint for name in names if (endpoint := _endpoint(name)) is not None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Subset) and self._endpoints == other._endpoints

    def __hash__(self) -> int:
        return hash(self._endpoints)

    def of(self, instances: Sequence[Instance]) -> Sequence[Instance]:
        """Those of the instances that are in the set, in their order."""
        return [instance for instance in instances if self._holds(instance.address)]

    def _holds(self, address: str) -> bool:
        endpoint = _endpoint(address)
        return endpoint is not None and (endpoint in self._endpoints or (endpoint[0], None) in self._endpoints)


@dataclass(frozen=True, slots=True)
class Admission:
    """The instances that may take a request."""

    subset: Subset | None = None  # None: every instance of the pool
    max_load: float = math.inf  # requests in flight; where every candidate has so many, the request is shed


ALL = Admission()


@lru_cache(maxsize=8192)  # gateways name the same endpoints on every request; bounded, since they may name anything
def _endpoint(text: str) -> tuple[IP, int | None] | None:
    """Address and port of "10.0.0.1:8000", "10.0.0.1", "[fd00::1]:8000", "[fd00::1]" or "fd00::1"; None for others."""
    host, port = text, ""
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            return None
        port = port[1:]
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    try:
        address = ip_address(host)
    except ValueError:
        return None
    if not port:
        return None if text.endswith(":") and host != text else (address, None)
    return (address, int(port)) if port.isascii() and port.isdigit() and len(port) <= 5 else None
