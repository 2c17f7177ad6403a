"""How a replay stands, from the rows that have come."""

from __future__ import annotations

from typing import Any

from loadgen.replay.progress import Progress
from loadgen.replay.replay import Counts
from loadgen.results.records import Row


def row(session: str, instance: str | None, **given: Any) -> Row:
    times = {"due_s": 0.0, "sent_s": 0.0, "first_s": 0.1, "end_s": 0.2}
    lengths = {"input": 100, "output": 4, "produced": 4, "local": 50}
    fields = {"request": "r", "session": session, "turn": 0, "instance": instance, **times, **lengths, **given}
    return Row(**fields)


def test_it_counts_what_each_instance_served() -> None:
    """Hits are shares of tokens; a session is where its latest request was; a failed request was served by nobody."""
    counts = Counts(done=5, failed=1, late=2)
    progress = Progress("smetric", 9, counts, ["a", "b", "c"])
    for one in (row("s", "a", local=0), row("t", "a"), row("s", "b", input=300, local=300)):
        progress.add(one)
    progress.add(row("u", "c", error="no", end_s=None))
    shown = progress.snapshot()
    assert (shown.done, shown.failed, shown.late, shown.total) == (5, 1, 2, 9)
    assert [(one.name, one.sessions, one.requests, one.hit_ratio) for one in shown.rows] == [
        ("a", 1, 2, 0.25),
        ("b", 1, 1, 1.0),
        ("c", 0, 0, None),
    ]
    assert shown.hit_ratio == 350 / 500


def test_instances_appear_as_they_answer() -> None:
    """Where nobody said which there are; an answer that names none counts for the run alone."""
    progress = Progress("x", 2, Counts())
    progress.add(row("s", None))
    assert progress.snapshot().rows == []
    progress.add(row("s", "a"))
    assert [one.name for one in progress.snapshot().rows] == ["a"]
    assert progress.snapshot().hit_ratio == 0.5
