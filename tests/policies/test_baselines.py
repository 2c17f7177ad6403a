"""The policies that SMetric is compared with."""

from __future__ import annotations

from extproc.model import Reason
from extproc.policies import View, least_loaded
from extproc.policies.round_robin import choose as next_in_turn


def test_round_robin_knows_neither_cache_nor_load() -> None:
    """The cursor alone decides."""
    assert next_in_turn(View(5, 900, 1000, [1000, 0, 0], [0, 9, 9], 4)) == (1, Reason.SCORED)


def test_least_loaded_joins_the_shortest_queue() -> None:
    """The lowest load wins whatever the cache holds; ties go round."""
    assert least_loaded.choose(View(5, 900, 1000, [1000, 0, 0], [3, 1, 1], 0)) == (1, Reason.SCORED)
    assert least_loaded.choose(View(5, 900, 1000, [1000, 0, 0], [3, 1, 1], 2)) == (2, Reason.SCORED)
