"""How old an engine's word is, whatever its clock shows."""

from __future__ import annotations

import pytest

from extproc.kv_events.age import WINDOW_S, Age


@pytest.mark.parametrize("ahead", [-3600.0, -0.2, 0.0, 0.2, 3600.0])
def test_the_clocks_of_two_machines_differ(ahead: float) -> None:
    """The quickest batch came at once; one that waited half a second was said half a second ago."""
    age = Age()
    assert age.heard(100.0 + ahead, 100.003) == pytest.approx(0.0)
    assert age.heard(101.0 + ahead, 101.503) == pytest.approx(0.5)
    assert age.heard(102.0 + ahead, 102.001) == pytest.approx(0.0)
    assert age.of(90.0 + ahead, 103.001) == pytest.approx(13.0)


def test_a_replay_tells_nothing_of_the_clocks() -> None:
    """Batches of an hour ago come as quickly as one another; until one comes as it is said, the clocks agree."""
    age = Age()
    assert age.of(100.0, 3700.0) == 3600.0
    assert age.of(5000.0, 3700.0) == 0.0, "nothing is said in the future"
    assert age.heard(3699.0, 3700.0) == 0.0


def test_a_clock_that_was_set_is_believed_again() -> None:
    """For two windows at most everything seems older, or younger, than it is."""
    age = Age()
    age.heard(0.0, 0.0)
    assert age.heard(9.0, 10.0) == 1.0, "the engine's clock was set back by a second"
    now, last = 10.0, 1.0
    while now < 2 * WINDOW_S + 10:
        now += 5
        last = age.heard(now - 1, now)
    assert last == 0.0
