"""Who is ejected after failing, for how long, and what ends it."""

from __future__ import annotations

from extproc.routing.pools.ejections import CONSECUTIVE_ERRORS, EJECTION_S, MAX_EJECTION_S, Ejections

SICK = "10.0.0.1:8000"


def test_one_error_may_be_the_requests_own() -> None:
    """Only errors in a row eject a host; a success between them starts the count again."""
    ejections = Ejections()
    for _ in range(5):
        for _ in range(CONSECUTIVE_ERRORS - 1):
            ejections.erred(SICK, 0.0)
        ejections.cleared(SICK)
    assert ejections.ejected(0.0) == {}
    for _ in range(CONSECUTIVE_ERRORS):
        ejections.erred(SICK, 0.0)
    assert ejections.ejected(0.0) == {SICK: EJECTION_S}


def test_who_cannot_be_reached_is_ejected_at_once() -> None:
    """And after the wait it is nobody's concern any more."""
    ejections = Ejections()
    ejections.unreachable(SICK, 0.0)
    assert ejections.ejected(1.0) == {SICK: EJECTION_S - 1}
    assert ejections.ejected(EJECTION_S) == {}


def test_failures_of_requests_sent_before_make_nothing_worse() -> None:
    """A dead instance takes many requests along; together they are one failure."""
    ejections = Ejections()
    for number in range(100):
        ejections.unreachable(SICK, number / 100)
        ejections.erred(SICK, number / 100)
    assert ejections.ejected(1.0) == {SICK: EJECTION_S - 1}


def test_one_request_at_a_time_tries_an_ejected_host() -> None:
    """After the wait a request goes there, and no other before it is answered; its failure doubles the wait."""
    ejections, now = Ejections(), 0.0
    ejections.unreachable(SICK, now)
    waits = []
    for _ in range(6):
        now += ejections.ejected(now)[SICK]
        assert ejections.ejected(now) == {}
        ejections.tried(SICK, now)
        assert SICK in ejections.ejected(now)
        ejections.erred(SICK, now + 0.1)
        now += 0.1
        waits.append(round(ejections.ejected(now)[SICK], 6))
    assert waits == [2 * EJECTION_S, 4 * EJECTION_S, 8 * EJECTION_S, *[MAX_EJECTION_S] * 3]
    ejections.cleared(SICK)
    assert not ejections


def test_a_try_that_is_never_answered_is_not_the_last() -> None:
    """A client may hang up: after the same wait another request tries."""
    ejections = Ejections()
    ejections.unreachable(SICK, 0.0)
    ejections.tried(SICK, EJECTION_S)
    assert ejections.ejected(EJECTION_S) == {SICK: EJECTION_S}
    assert ejections.ejected(2 * EJECTION_S) == {}


def test_who_is_not_ejected_is_not_held_back() -> None:
    """Requests to hosts that work, or failed once, leave no trace."""
    ejections = Ejections()
    ejections.tried(SICK, 0.0)
    assert not ejections
    ejections.erred(SICK, 0.0)
    ejections.tried(SICK, 0.0)
    assert ejections.ejected(0.0) == {}


def test_hosts_that_left_the_pool_are_forgotten() -> None:
    """However many come and go, memory is bounded by the pool."""
    ejections = Ejections()
    for number in range(100):
        ejections.erred(f"10.0.0.{number}:8000", 0.0)
    ejections.forget_all_but({"10.0.0.7:8000"})
    ejections.erred("10.0.0.7:8000", 0.0)
    assert list(ejections.ejected(0.0)) == ["10.0.0.7:8000"]
    ejections.forget_all_but(())
    assert not ejections
