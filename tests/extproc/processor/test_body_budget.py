"""The budget of bytes that all bodies share while they are collected."""

from __future__ import annotations

from extproc.processor.body_budget import BodyBudget


def test_what_is_taken_is_gone_until_it_is_given_back() -> None:
    """Beyond the total nothing is granted, and a refusal costs nothing."""
    budget = BodyBudget(100)
    assert budget.take(60)
    assert not budget.take(41)
    assert budget.take(40)
    assert not budget.take(1)
    budget.give_back(60)
    assert budget.take(60)
