"""The two sides of a pool: which instances may prefill for others, which decode, and how often prefilling is tried."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from extproc.base.model import Instance, Role

# Prefill instances that one request tries before its decode instance computes the prompt itself. Two, because a second
# failure is hardly the instance's.
ATTEMPTS = 2


def budget_ms(timeout_s: float) -> int:
    """Milliseconds that Envoy must wait for a request whose prefills may take `timeout_s` each, and a second more."""
    return round((ATTEMPTS * timeout_s + 1) * 1000)


@dataclass(frozen=True, slots=True)
class Halves:
    """The instances that may decode, and those that may prefill for them: none where each does everything itself."""

    prefill: Sequence[Instance]
    decode: Sequence[Instance]


def halves(candidates: Sequence[Instance], failed: Collection[str] = ()) -> Halves:
    """The two sides of a pool. Where one side is empty the other serves alone, whatever its role.

    `failed` names instances that could not prefill this request: they are not asked again.
    """
    decode = [instance for instance in candidates if instance.role is not Role.PREFILL]
    if not decode or all(instance.role is Role.BOTH for instance in candidates):
        return Halves((), candidates)
    prefill = [i for i in candidates if i.role is not Role.DECODE and i.name not in failed]
    return Halves(prefill, decode)
