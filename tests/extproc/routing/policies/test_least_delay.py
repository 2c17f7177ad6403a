"""Least delay, on worked numbers. Every choice here can be checked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from extproc.base.model import Reason
from extproc.routing.pace import Pace
from extproc.routing.policies import View, registry

PLAIN = Pace(byte_s=1.0, depth=1e12)  # a second a byte, however deep


def choose(**changes: Any) -> int:
    """A follow-up of 1,000 bytes, a second each; instance 0 holds 900, 2 holds 500, 1 and 3 nothing; nobody is busy."""
    values: dict[str, Any] = {
        "turn": 5,
        "history": 900,
        "prompt": 1000,
        "hits": [900, 0, 500, 0],
        "loads": [0, 0, 0, 0],
        "cursor": 0,
        "unprefilled": [0, 0, 0, 0],
        "waits": [0, 0, 0, 0],
        "pace": PLAIN,
    }
    verdict = registry.get("least-delay")(View(**(values | changes)))
    assert verdict.reason is Reason.SCORED
    return verdict.candidate


def test_an_idle_instance_does_not_take_a_follow_up_from_its_cache() -> None:
    """100 bytes behind one request are less than 1,000 on an idle instance: f = [200, 1000, 500, 1000]."""
    assert choose(loads=[1, 0, 0, 0]) == 0


def test_requests_in_flight_wait_for_a_prefill_too() -> None:
    """f = [100 * 6, 1000, 500, 1000] with five requests in flight: they outweigh what another instance lacks."""
    assert choose(loads=[3, 0, 0, 0]) == 0
    assert choose(loads=[5, 0, 0, 0]) == 2


def test_prefill_that_waits_counts_once() -> None:
    """f = [401 + 100, 1000, 500, 1000], and with 399 it is 499."""
    assert choose(waits=[399, 0, 0, 0]) == 0
    assert choose(waits=[401, 0, 0, 0]) == 2


@pytest.mark.parametrize(("fetch_s", "candidate"), [(math.inf, 0), (2.0, 0), (0.5, 2), (0.0, 1)])
def test_a_cheap_fetch_lets_go_of_a_cache(fetch_s: float, candidate: int) -> None:
    """f = 250 + 100 at 0, and elsewhere 100 + fetch_s * (900 - hit), at most 1 second a byte: [350, 1000, 500, 1000],
    the same, [350, 550, 300, 550] and [350, 100, 100, 100]."""
    assert choose(waits=[250, 0, 0, 0], pace=Pace(1.0, 1e12, fetch_s)) == candidate


def test_a_byte_deep_in_a_prompt_is_dearer() -> None:
    """With `depth` 100, the 400 bytes from 500 to 900 cost 400 * (1 + 1400 / 200) = 3,200 s, not 400."""
    assert choose(waits=[3100, 0, 0, 0], pace=Pace(1.0, 100.0)) == 0
    assert choose(waits=[3300, 0, 0, 0], pace=Pace(1.0, 100.0)) == 2


def test_first_turns_spread_once_the_holder_is_busy() -> None:
    """A shared prompt of 900 bytes draws a first turn to an idle holder, and not to one with ten requests more."""
    first = {"turn": 0, "history": 0, "hits": [900, 0, 0, 0]}
    assert choose(**first) == 0
    assert choose(**first, loads=[10, 1, 0, 1]) == 2


def test_loads_in_bytes_count_as_requests_like_this_one() -> None:
    """In a prefill pool 5,000 bytes are five prompts of 1,000: f = [5000 + 100 * 6, 1000, 500, 1000]."""
    assert choose(loads=[5000, 0, 0, 0], unit=1000) == 2
    assert choose(loads=[3000, 0, 0, 0], unit=1000) == 0
