"""Hosts that requests have shown to be sick: out of reach, or failing whatever they are sent.

Such a host is ejected: no request goes there for a while. Then one request tries it, and if that fails too, the host is
ejected for twice as long. Envoy calls this outlier detection.
Knows addresses, times and outcomes; refuses to know instances, and health checks (`health_rules.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

# How long a host is ejected before one more request tries it. Long enough that a dead instance, idle and so the
# least loaded, costs few requests a retry; short enough that a restart is soon used.
EJECTION_S = 5.0
MAX_EJECTION_S = 60.0  # where it fails again and again: one failed request a minute is bearable
# Errors in a row after which a host is ejected. One may be due to its request; two of different requests hardly.
CONSECUTIVE_ERRORS = 2
# Statuses that are the host's fault. 501 is about the request: the engine does not know such a thing.
ERRORS = frozenset({"500", "502", "503", "504"})


@dataclass(slots=True)
class _Case:
    errors: int = 0  # in a row
    wait_s: float = 0.0  # how long it is ejected; 0 before the first time
    until: float = 0.0
    tried: bool = False  # the request that tries it is under way


class Ejections:
    """The ejected hosts of one pool, by address. Times are in seconds, of one monotonic clock."""

    def __init__(self) -> None:
        self._cases: dict[str, _Case] = {}

    def __bool__(self) -> bool:
        return bool(self._cases)

    def ejected(self, now: float) -> Mapping[str, float]:
        """The hosts that are ejected at the moment, with the seconds left."""
        return {address: case.until - now for address, case in self._cases.items() if case.until > now}

    def erred(self, address: str, now: float) -> None:
        """It answered with one of ERRORS."""
        case = self._cases.setdefault(address, _Case())
        case.errors += 1
        if case.wait_s or case.errors >= CONSECUTIVE_ERRORS:
            self.unreachable(address, now)

    def unreachable(self, address: str, now: float) -> None:
        """Nobody answered there. What fails while it is ejected was sent before, and makes nothing worse."""
        case = self._cases.setdefault(address, _Case())
        if case.until <= now or case.tried:
            case.wait_s = min(2 * case.wait_s, MAX_EJECTION_S) or EJECTION_S
            case.until, case.tried = now + case.wait_s, False

    def tried(self, address: str, now: float) -> None:
        """A request goes there. To an ejected host it is the only one until it is answered, or for as long again."""
        case = self._cases.get(address)
        if case is not None and case.wait_s and case.until <= now:
            case.until, case.tried = now + case.wait_s, True

    def cleared(self, address: str) -> None:
        """It served a request, or its health checks pass again."""
        self._cases.pop(address, None)

    def forget_all_but(self, addresses: Collection[str]) -> None:
        """The pool has these hosts and no others."""
        self._cases = {address: case for address, case in self._cases.items() if address in addresses}
