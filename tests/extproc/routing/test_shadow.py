"""Shadow policies watch and never act."""

from __future__ import annotations

import pytest

from extproc.routing.policies import View
from extproc.routing.shadow import Opinion, opinions

VIEW = View(0, 0, 1000, [900, 0, 0], [2, 0, 1], 0, [0, 0, 0])


def test_opinions_on_worked_numbers() -> None:
    """On a first turn SMetric takes the idle instance; Bailian would have followed the cache, least-loaded agrees."""
    shadows = {"bailian": {"weight": 0.7}, "least-loaded": {}}
    assert opinions(shadows, VIEW, chosen=1) == (Opinion("bailian", False, 900), Opinion("least-loaded", True, 0))


def test_a_broken_shadow_has_no_opinion(caplog: pytest.LogCaptureFixture) -> None:
    """A bug in a policy that does not act must cost nothing but its own figure."""
    assert opinions({"bailian": {"no_such_option": 1.0}, "random": {}}, VIEW, 0) == (Opinion("random", True, 900),)
    assert "shadow policy bailian" in caplog.text
