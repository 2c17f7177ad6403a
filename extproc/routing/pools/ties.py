"""Who got least lately, of each kind of request: what decides among instances that are otherwise equal. Pure.

A round robin with one place for all requests falls into step with clients whose requests come in a period: where each
agent asks for `/v1/models` before its first turn, the first turns of all agents see the same half of the instances. So
each kind has an account of its own, a long prompt weighs more than a short one, and among those who are about equal the
choice is drawn, so that no period of any client can meet a period of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

# Requests of one instance, before all accounts are halved: a few dozen are what "lately" means, at any rate.
WINDOW = 32.0
MOST = 4096  # instances in an account: pods that come and go faster than they get requests must not fill memory


class Kind(Enum):
    """Requests that must not move each other's place."""

    FIRST = "first turns"  # where a session begins, it stays
    OTHER = "all else"
    DECODE = "decoding for another instance"


class Ties:
    """The accounts of one pool: requests and bytes of prompts, by kind and by instance."""

    def __init__(self) -> None:
        self._accounts: dict[Kind, dict[str, tuple[float, float]]] = {kind: {} for kind in Kind}

    def note(self, kind: Kind, instance: str, size: int) -> None:
        """The instance got a request of `size` bytes."""
        account = self._accounts[kind]
        requests, total = account.get(instance, (0.0, 0.0))
        account[instance] = (requests + 1, total + size)
        if requests >= WINDOW:
            self._accounts[kind] = {name: (n / 2, b / 2) for name, (n, b) in account.items() if n > 1 / WINDOW}

    def shares(self, kind: Kind, instances: Sequence[str]) -> Sequence[float]:
        """What each instance got lately, in requests: one for each, and its bytes in mean prompts of the pool.

        A newcomer begins with as much as that one of these which got least, or it would get all for a while. Where few
        requests came so far, those that got none are no newcomers.
        """
        account = self._accounts[kind]
        requests = sum(n for n, _ in account.values())
        if not all(name in account for name in instances):
            known = [account[name] for name in instances if name in account]
            fresh = min(known) if known and requests >= WINDOW else (0.0, 0.0)
            if len(account) + len(instances) > MOST:
                account = self._accounts[kind] = {name: account[name] for name in instances if name in account}
            for name in instances:
                account.setdefault(name, fresh)
        size = sum(b for _, b in account.values()) / requests if requests else 0.0
        return [n + (b / size if size else 0.0) for n, b in (account[name] for name in instances)]

    def copy(self) -> Ties:
        """The same accounts, apart: what is noted there moves nothing here."""
        other = Ties()
        other._accounts = {kind: dict(account) for kind, account in self._accounts.items()}
        return other
