"""What is said of a Redis that is away or refuses: once, until it changes or ends."""

from __future__ import annotations

import pytest

from extproc.shared_state.refusals import Cause, Refusal
from extproc.shared_state.standing import CALM_S, Standing, Use

FULL = Refusal(Cause.OUT_OF_MEMORY, "OOM command not allowed")
REPLICA = Refusal(Cause.READ_ONLY, "READONLY You can't write")
APPLY, OTHER_POOL, SWEEP = Use("apply", "a"), Use("apply", "b"), Use("sweep", "a")


@pytest.fixture
def standing() -> Standing:
    return Standing("redis:6379", "smetric", cluster=False)


def test_a_refusal_is_said_once(standing: Standing, caplog: pytest.LogCaptureFixture) -> None:
    """However often it is met, and in whichever pool; what it was for, Redis's words and a remedy are in the line."""
    for now in range(100):
        standing.refuses(APPLY, FULL, now)
        standing.refuses(OTHER_POOL, FULL, now)
    (line,) = caplog.messages
    assert line.startswith("Redis at redis:6379 refuses to store blocks of pool a: OOM command not allowed; raise max")


def test_another_use_and_another_cause_are_said(standing: Standing, caplog: pytest.LogCaptureFixture) -> None:
    """Each is a thing of its own."""
    standing.refuses(APPLY, FULL, 0)
    standing.refuses(SWEEP, FULL, 0)
    standing.refuses(APPLY, REPLICA, 1)
    assert [line.partition("refuses to ")[2].partition(";")[0] for line in caplog.messages] == [
        "store blocks of pool a: OOM command not allowed",
        "sweep of pool a: OOM command not allowed",
        "store blocks of pool a: READONLY You can't write",
    ]


def test_its_end_is_said(standing: Standing, caplog: pytest.LogCaptureFixture) -> None:
    """Once the last pool is let through, and only after a while: refusals that come and go are one."""
    standing.refuses(APPLY, FULL, 0)
    standing.refuses(OTHER_POOL, FULL, 0)
    for now in (1, 2, 3):
        standing.allows(APPLY, now)
        standing.refuses(APPLY, FULL, now + 0.5)
    standing.allows(OTHER_POOL, 1 + CALM_S)
    assert len(caplog.messages) == 1
    standing.allows(APPLY, 4 + CALM_S)
    assert caplog.messages[1:] == [
        "Redis at redis:6379 no longer refuses to store blocks of pool a: OOM command not allowed"
    ]
    assert not standing.refused


def test_what_operators_see(standing: Standing) -> None:
    """Each use with its pool, its cause, Redis's words, and since when."""
    standing.refuses(APPLY, FULL, 10)
    standing.refuses(APPLY, FULL, 14)
    standing.away(self_ := object(), "it does not answer", None)
    assert standing.shown(15) == {
        "redis": "redis:6379",
        "away": "it does not answer",
        "refused": [
            {
                "asked": "store blocks",
                "pool": "a",
                "cause": "out_of_memory",
                "said": FULL.words,
                "since_s": 5,
                "last_s": 1,
            }
        ],
    }
    standing.back(self_)
    assert standing.shown(15)["away"] is None


def test_pools_that_left(standing: Standing) -> None:
    """Nobody will ask for them again, so what was refused of them ends."""
    standing.refuses(APPLY, FULL, 0)
    standing.refuses(OTHER_POOL, FULL, 0)
    standing.refuses(Use("hear_loads"), FULL, 0)
    standing.keep(["b"])
    assert standing.refused.keys() == {OTHER_POOL, Use("hear_loads")}


def test_an_outage_that_changes(standing: Standing, caplog: pytest.LogCaptureFixture) -> None:
    """A Redis that restarts is away, then loads its data, then back: a line each, however many links find out."""
    one, other = object(), object()
    loading = Refusal(Cause.LOADING, "LOADING Redis is loading the dataset in memory")
    for _ in range(3):
        for link in (one, other):
            standing.away(link, "it refuses connections", None)
            standing.away(link, loading.words, loading)
    standing.back(one)
    standing.back(other)
    assert [line.partition("Redis at redis:6379 ")[2].partition(";")[0] for line in caplog.messages] == [
        "is away (it refuses connections)",
        "refuses us (LOADING Redis is loading the dataset in memory",
        "is back",
    ]


def test_a_replica_is_left_for_the_master(standing: Standing) -> None:
    """All of a process connect anew, seldom where nothing comes of it: it may be a replica for good."""
    moved = []
    for now in range(200):
        before = standing.moves
        standing.refuses(APPLY, REPLICA, now)
        moved += [now] * (standing.moves - before)
    assert moved == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    standing.refuses(SWEEP, FULL, 200)
    standing.allows(APPLY, 200 + CALM_S)
    standing.refuses(APPLY, REPLICA, 300)
    standing.refuses(APPLY, REPLICA, 301)
    assert standing.moves == len(moved) + 2
