"""The policies that SMetric is compared with, on worked numbers. Every choice here can be checked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.base.model import Reason
from extproc.routing.policies import Verdict, View, registry


def choose(policy: str, **changes: Any) -> Verdict:
    """A follow-up of 1,000 bytes; instance 0 holds 900 of it and is busy, 2 holds 500, 1 and 3 hold nothing."""
    values: dict[str, Any] = {
        "turn": 5,
        "history": 900,
        "prompt": 1000,
        "hits": [900, 0, 500, 0],
        "loads": [4, 2, 2, 1],
        "cursor": 0,
        "unprefilled": [800, 0, 100, 0],
    }
    options = changes.pop("options", {})
    return registry.get(policy)(View(**(values | changes)), **options)


@pytest.mark.parametrize(
    ("policy", "changes", "candidate"),
    [
        ("round-robin", {"cursor": 6}, 2),
        ("random", {"seed": 7}, 3),
        ("least-loaded", {}, 3),
        ("least-loaded", {"loads": [3, 1, 1, 9], "shares": [0, 5, 2, 0]}, 2),
        # f = [0.3 + 0.07, 0.15 + 0.7, 0.15 + 0.35, 0.075 + 0.7]
        ("bailian", {}, 0),
        # weight 0.2: f = [0.8 + 0.02, 0.4 + 0.2, 0.4 + 0.1, 0.2 + 0.2]
        ("bailian", {"options": {"weight": 0.2}}, 3),
        # f = [100 * 4, 1000 * 2, 500 * 2, 1000 * 1]
        ("lmetric", {}, 0),
        # An idle instance scores 0, whatever it lacks.
        ("lmetric", {"loads": [4, 0, 2, 1]}, 1),
        # idle 1: f = [100 * 5, 1000 * 1, 500 * 3, 1000 * 2]
        ("lmetric", {"loads": [4, 0, 2, 1], "options": {"idle": 1.0}}, 0),
        # f = [800 + 100, 0 + 1000, 100 + 500, 0 + 1000]
        ("dynamo", {}, 2),
        ("sticky-until-saturated", {}, 0),
        ("sticky-until-saturated", {"options": {"saturation": 4}}, 3),
        ("sticky-until-saturated", {"options": {"match": 0.5}}, 2),
        ("smetric-basic", {}, 0),
        ("smetric-basic", {"hits": [900, 0, 900, 0]}, 2),
        ("smetric-basic", {"turn": 0}, 3),
    ],
)
def test_worked_numbers(policy: str, changes: dict[str, Any], candidate: int) -> None:
    """Each formula gives the choice that its arithmetic says."""
    assert choose(policy, **changes) == (candidate, Reason.SCORED)


@pytest.mark.parametrize("policy", ["bailian", "sticky-until-saturated"])
def test_cache_chasers_pile_up_where_smetric_spreads(policy: str) -> None:
    """First requests that share 950 of 1,000 bytes follow the one instance that holds them; SMetric's do not."""
    first = {"turn": 0, "history": 0, "hits": [950, 0, 0, 0], "loads": [1, 1, 1, 0]}
    assert choose(policy, **first).candidate == 0
    assert choose("smetric", **first).candidate == 3
