"""Which hosts of a pool are healthy, by the rules of Envoy's active health checks. `health_checks.py` asks the hosts.

Unlike in Envoy, a host counts as healthy until a check says otherwise: a restart of the router must not empty a pool.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum


class Result(Enum):
    """How one check ended."""

    PASSED = "passed"
    REFUSED = "refused"  # another status than expected: unhealthy at once, whatever the threshold, as in Envoy
    SILENT = "silent"  # no answer in time, or no connection


class Health:
    """The hosts of one pool, by address. `unhealthy` is one set for as long as this object lives."""

    def __init__(self, unhealthy_threshold: int, healthy_threshold: int) -> None:
        """Thresholds: after how many checks in a row a host changes from healthy to unhealthy, and back."""
        self.unhealthy: set[str] = set()
        self._unhealthy_threshold = unhealthy_threshold
        self._healthy_threshold = healthy_threshold
        self._streaks: dict[str, int] = {}  # checks in a row that say the opposite of what the host counts as

    def note(self, address: str, result: Result) -> bool:
        """Note a check. Returns whether it changed the host from healthy to unhealthy, or back."""
        sick, passed = address in self.unhealthy, result is Result.PASSED
        if sick is not passed:
            self._streaks.pop(address, None)
            return False
        self._streaks[address] = self._streaks.get(address, 0) + 1
        threshold = self._healthy_threshold if sick else self._unhealthy_threshold
        if result is not Result.REFUSED and self._streaks[address] < threshold:
            return False
        del self._streaks[address]
        self.unhealthy ^= {address}
        return True

    def forget_all_but(self, addresses: Collection[str]) -> None:
        """The pool has these hosts and no others."""
        self.unhealthy.intersection_update(addresses)
        self._streaks = {address: streak for address, streak in self._streaks.items() if address in addresses}
