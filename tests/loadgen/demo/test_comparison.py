"""The demo's table: the figures of a few requests, computed by hand."""

from __future__ import annotations

import io
import re
from typing import Any

from rich.console import Console

from loadgen.demo.comparison import comparison
from loadgen.results.records import Row, RunInfo


def row(number: int, instance: str, turn: int = 0, **given: Any) -> Row:
    times = {"due_s": number, "sent_s": number, "first_s": number + 0.1, "end_s": number + 1.0}
    lengths = {"input": 100, "output": 4, "produced": 4, "local": 0}
    return Row(
        **{"request": f"r{number}", "session": "s", "turn": turn, "instance": instance, **times, **lengths, **given}
    )


def info(label: str) -> RunInfo:
    return RunInfo(
        kind="replay",
        label=label,
        policy=label,
        workload="demo",
        rate=1.0,
        seed=0,
        instances=["a", "b"],
        window=(0.0, 5.0),
    )


def text(runs: Any) -> str:
    console = Console(file=io.StringIO(), width=120, color_system=None)
    with console.capture() as shown:
        console.print(comparison(runs))
    return shown.get()


def test_the_same_workload_side_by_side() -> None:
    """A column a policy: hits, request-seconds, times, stickiness, failures, who got first turns and who got all."""
    good = [row(0, "a"), row(1, "a", 1, local=80), row(2, "b", 0, session="t"), row(3, "b", 1, session="t", local=80)]
    bad = [row(0, "a"), row(1, "b", 1), row(2, "a", 2, error="no", end_s=None)]
    shown = text([(info("smetric"), good), (info("other"), bad)])
    for title, left, right in (
        ("prompt tokens found in the cache", "40.0 %", "0.0 %"),
        ("request-seconds in 5 s windows, busiest / mean", "1.00", "1.00"),
        ("TTFT p50", "100 ms", "100 ms"),
        ("follow-ups back at their session's instance", "100.0 %", "0.0 %"),
        ("requests, failed", "4, 0", "3, 1"),
        ("first turns per instance", "1 1", "1 0"),
        ("requests per instance", "2 2", "2 1"),
    ):
        assert re.search(rf"{title}\W+{left}\W+{right}\W", shown), (title, shown)


def test_many_policies_become_rows() -> None:
    """Four columns of figures would not fit into a terminal."""
    shown = text([(info(name), [row(0, "a")]) for name in ("one", "two", "three", "four")])
    assert all(re.search(rf"│ {name}\W", shown) for name in ("one", "two", "three", "four"))


def test_an_empty_run_has_no_figures() -> None:
    """Where nothing was served there are dashes, not an error and not zero."""
    assert re.search(r"found in the cache\W+-\W", text([(info("x"), [])]))
