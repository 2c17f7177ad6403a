"""The two sides of a pool."""

from __future__ import annotations

import pytest

from extproc.base.model import Instance, Role
from extproc.routing.disaggregation.halves import ATTEMPTS, budget_ms, halves


def instances(*roles: Role) -> list[Instance]:
    return [Instance(f"10.0.0.{number}:8000", role=role) for number, role in enumerate(roles)]


P, D, B = Role.PREFILL, Role.DECODE, Role.BOTH


@pytest.mark.parametrize(
    ("roles", "prefill", "decode"),
    [
        ((B, B), [], [0, 1]),
        ((P, P, D), [0, 1], [2]),
        ((P, B, D), [0, 1], [1, 2]),
        ((B, D), [0], [0, 1]),
        ((P, B), [0, 1], [1]),
        ((P, P), [], [0, 1]),
        ((D, D), [], [0, 1]),
    ],
)
def test_sides(roles: tuple[Role, ...], prefill: list[int], decode: list[int]) -> None:
    """Roles make the two sides; where one of them is empty, the other serves alone, whatever its role."""
    candidates = instances(*roles)
    found = halves(candidates)
    assert list(found.prefill) == [candidates[i] for i in prefill]
    assert list(found.decode) == [candidates[i] for i in decode]


def test_a_failed_instance_is_not_asked_again() -> None:
    """Who could not prefill a request may still decode it."""
    candidates = instances(P, B, D)
    found = halves(candidates, {candidates[0].name, candidates[1].name})
    assert list(found.prefill) == []
    assert list(found.decode) == candidates[1:]


def test_envoy_waits_for_every_attempt() -> None:
    """All prefills that one request may try, and a second for everything else."""
    assert budget_ms(60.0) == ATTEMPTS * 60_000 + 1_000
