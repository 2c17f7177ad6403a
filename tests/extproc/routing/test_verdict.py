"""What follows from a view of the candidates."""

from __future__ import annotations

import math

import pytest

from extproc.base.errors import Shed
from extproc.base.model import Instance, Reason
from extproc.routing.policies import Verdict, View
from extproc.routing.route_settings import RouteSettings
from extproc.routing.verdict import fallbacks, shed, verdict

ROUTE = RouteSettings("pool")
VIEW = View(turn=1, history=100, prompt=200, hits=[0, 100, 0], loads=[2, 1, 0], cursor=0, unprefilled=[0, 0, 0])


def test_the_policy_speaks_first() -> None:
    """Where a request can be read and nothing pins it."""
    assert verdict(ROUTE, VIEW, None, None) == Verdict(1, Reason.STICK)


def test_a_degraded_request_goes_by_load() -> None:
    """Under the reason why it cannot be read."""
    assert verdict(ROUTE, VIEW, Reason.NO_BODY, None) == Verdict(2, Reason.NO_BODY)


def test_who_keeps_a_response_answers_for_it() -> None:
    """However loaded, and whatever else is known of the request."""
    assert verdict(ROUTE, VIEW, Reason.UNKNOWN_RESPONSE, 0) == Verdict(0, Reason.PREVIOUS_RESPONSE)


def test_a_policy_with_a_bug_costs_its_choice_alone() -> None:
    """Load decides then."""
    route = RouteSettings("pool", options={"no_such_option": 1.0})
    assert verdict(route, VIEW, None, None) == Verdict(2, Reason.INTERNAL_ERROR)


def test_fallbacks_are_other_hosts_by_load() -> None:
    """Two of them, never another rank of the chosen host; equals go round from the chosen one."""
    candidates = [Instance("a:1", 0), Instance("a:1", 1), Instance("b:1"), Instance("c:1"), Instance("d:1")]
    assert fallbacks(candidates, [0, 0, 3, 1, 2], 0) == (candidates[3], candidates[4])
    assert fallbacks(candidates, [0, 0, 0, 0, 0], 3) == (candidates[4], candidates[0])
    assert fallbacks(candidates[:2], [0, 0], 0) == ()
    assert fallbacks(candidates[1:3], [0, 0], 0, [candidates[4], candidates[3]]) == (candidates[2], candidates[4])


def test_a_pool_at_its_limit_sheds() -> None:
    """Only where every candidate has reached it."""
    shed("pool", [2, 1], 2)
    shed("pool", [10**9], math.inf)
    with pytest.raises(Shed, match="pool 'pool' has 2 requests in flight"):
        shed("pool", [2, 3], 2)
