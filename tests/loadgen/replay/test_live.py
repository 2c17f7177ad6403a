"""What a replay shows as it goes on: everything in one small terminal, and the same facts in plain lines."""

from __future__ import annotations

import io

from rich.console import Console

from loadgen.replay.live import PlainView, draw
from loadgen.replay.progress import Decision, InstanceRow, Snapshot

DECISION = Decision("engine-0", "first_turn", 12, 1_234_567, 2_345_678, 12.3)
SNAPSHOT = Snapshot(
    label="sticky-until-saturated",
    done=1000,
    failed=2,
    late=0,
    total=1440,
    elapsed_s=65.0,
    rows=[InstanceRow(f"engine-{number}", 6, 360, 0.834, 12, 12_345) for number in range(4)],
    hit_ratio=0.834,
    reasons={"first_turn": 24, "stick": 970, "overloaded": 6},
    decisions=[DECISION] * 5,
)


def test_it_fits_into_a_small_terminal() -> None:
    """In 80 columns and 24 lines nothing is cut or wrapped, and there is room for what was said before."""
    console = Console(file=io.StringIO(), width=80, color_system=None, soft_wrap=True)
    with console.capture() as shown:
        console.print(draw(SNAPSHOT))
    lines = shown.get().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert len(lines) <= 17
    text = shown.get()
    assert "decisions by reason: stick 970, first_turn 24, overloaded 6" in text
    assert text.count("1234.6 / 2345.7") == 5
    assert "sessions now here" in text
    assert "…" not in text


def test_plain_lines_tell_hits_and_reasons() -> None:
    """A pipe gets what the table shows: progress, sessions, cache hits, reasons."""
    out = io.StringIO()
    with PlainView(Console(file=out, soft_wrap=True)) as view:
        view.show(SNAPSHOT)
    assert "sessions now here 6 6 6 6, in flight 12 12 12 12; cache 83.4 %; stick 970, first_turn 24, overloaded 6" in (
        out.getvalue()
    )


def test_what_is_unknown_is_left_out() -> None:
    """A gateway that says nothing of itself has no columns for it; requests that were sent late are told."""
    rows = [InstanceRow("10.0.0.1:8000", 6, 360, None)]
    plain = Snapshot(label="x", done=5, failed=0, late=3, total=9, elapsed_s=1.0, rows=rows, hit_ratio=None)
    console = Console(file=io.StringIO(), width=80, color_system=None, soft_wrap=True)
    with console.capture() as shown:
        console.print(draw(plain))
    text = shown.get()
    assert "5/9 requests, 0 failed, 3 late, 1 s" in text
    assert "in flight" not in text
    assert "decisions" not in text
