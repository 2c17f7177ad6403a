"""Who is left alone after failing, for how long, and what ends it."""

from __future__ import annotations

from extproc.routing.pools.suspects import MAX_SUSPECT_S, STRIKES, SUSPECT_S, Suspects

SICK = "10.0.0.1:8000"


def test_one_error_may_be_the_requests_own() -> None:
    """Only errors in a row make a suspect; a success between them starts the count again."""
    suspects = Suspects()
    for _ in range(5):
        for _ in range(STRIKES - 1):
            suspects.erred(SICK, 0.0)
        suspects.cleared(SICK)
    assert suspects.left_alone(0.0) == {}
    for _ in range(STRIKES):
        suspects.erred(SICK, 0.0)
    assert suspects.left_alone(0.0) == {SICK: SUSPECT_S}


def test_who_cannot_be_reached_is_a_suspect_at_once() -> None:
    """And after the wait it is nobody's concern any more."""
    suspects = Suspects()
    suspects.unreachable(SICK, 0.0)
    assert suspects.left_alone(1.0) == {SICK: SUSPECT_S - 1}
    assert suspects.left_alone(SUSPECT_S) == {}


def test_failures_of_requests_sent_before_make_nothing_worse() -> None:
    """A dead instance takes many requests along; together they are one failure."""
    suspects = Suspects()
    for number in range(100):
        suspects.unreachable(SICK, number / 100)
        suspects.erred(SICK, number / 100)
    assert suspects.left_alone(1.0) == {SICK: SUSPECT_S - 1}


def test_one_request_at_a_time_tries_a_suspect() -> None:
    """After the wait a request goes there, and no other before it is answered; its failure doubles the wait."""
    suspects, now = Suspects(), 0.0
    suspects.unreachable(SICK, now)
    waits = []
    for _ in range(6):
        now += suspects.left_alone(now)[SICK]
        assert suspects.left_alone(now) == {}
        suspects.tried(SICK, now)
        assert SICK in suspects.left_alone(now)
        suspects.erred(SICK, now + 0.1)
        now += 0.1
        waits.append(round(suspects.left_alone(now)[SICK], 6))
    assert waits == [2 * SUSPECT_S, 4 * SUSPECT_S, 8 * SUSPECT_S, *[MAX_SUSPECT_S] * 3]
    suspects.cleared(SICK)
    assert not suspects


def test_a_try_that_is_never_answered_is_not_the_last() -> None:
    """A client may hang up: after the same wait another request tries."""
    suspects = Suspects()
    suspects.unreachable(SICK, 0.0)
    suspects.tried(SICK, SUSPECT_S)
    assert suspects.left_alone(SUSPECT_S) == {SICK: SUSPECT_S}
    assert suspects.left_alone(2 * SUSPECT_S) == {}


def test_who_is_no_suspect_is_not_held_back() -> None:
    """Requests to hosts that work, or failed once, leave no trace."""
    suspects = Suspects()
    suspects.tried(SICK, 0.0)
    assert not suspects
    suspects.erred(SICK, 0.0)
    suspects.tried(SICK, 0.0)
    assert suspects.left_alone(0.0) == {}


def test_hosts_that_left_the_pool_are_forgotten() -> None:
    """However many come and go, memory is bounded by the pool."""
    suspects = Suspects()
    for number in range(100):
        suspects.erred(f"10.0.0.{number}:8000", 0.0)
    suspects.forget_all_but({"10.0.0.7:8000"})
    suspects.erred("10.0.0.7:8000", 0.0)
    assert list(suspects.left_alone(0.0)) == ["10.0.0.7:8000"]
    suspects.forget_all_but(())
    assert not suspects
