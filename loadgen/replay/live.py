"""What one sees while a replay goes on: a live table on a terminal, plain lines elsewhere. Draws, measures nothing."""

from __future__ import annotations

import math
from types import TracebackType
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loadgen.replay.progress import Snapshot

LINE_EVERY = 5.0  # seconds between two plain lines


class View(Protocol):
    """A context manager that is shown snapshots."""

    def __enter__(self) -> View: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def show(self, snapshot: Snapshot) -> None: ...


def view(console: Console) -> View:
    """The view that suits the console."""
    return TerminalView(console) if console.is_terminal else PlainView(console)


class TerminalView:
    """Redraws in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=8)

    def __enter__(self) -> View:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, snapshot: Snapshot) -> None:
        """Draw it."""
        self._live.update(draw(snapshot))


def draw(snapshot: Snapshot) -> Group:
    """A snapshot for a terminal of 80 columns."""
    head = Table.grid(padding=(0, 2))
    head.add_row(
        Text(snapshot.label, style="bold"), ProgressBar(snapshot.total, snapshot.done, width=12), _progress(snapshot)
    )
    parts: list[RenderableType] = [head, "", _instances(snapshot)]
    if snapshot.reasons:
        parts += ["", Text(f" decisions by reason: {_reasons(snapshot)}")]
    if snapshot.decisions:
        parts += ["", _decisions(snapshot)]
    return Group(*parts)


def _instances(snapshot: Snapshot) -> Table:
    columns = {
        "instance": [row.name for row in snapshot.rows],
        "sessions now here": [str(row.sessions) for row in snapshot.rows],
        "in flight": [_or_dash(row.in_flight) for row in snapshot.rows],
        "served": [str(row.requests) for row in snapshot.rows],
        "cache hits": [_percent(row.hit_ratio) for row in snapshot.rows],
        "index blocks": [_or_dash(row.index_blocks) for row in snapshot.rows],
    }
    known = {title: cells for title, cells in columns.items() if set(cells) != {"-"} or title == "cache hits"}
    table = Table(box=None, padding=(0, 1))
    for title in known:
        table.add_column(title, justify="left" if title == "instance" else "right", no_wrap=True)
    for cells in zip(*known.values(), strict=True):
        table.add_row(*cells)
    return table


def _decisions(snapshot: Snapshot) -> Table:
    decisions = Table(
        box=None,
        padding=(0, 1),
        title="decisions of the requests that ended last",
        title_justify="left",
        title_style="dim",
    )
    for title in ("instance", "reason", "turn", "hit / prompt (KB)", "decided in (ms)"):
        decisions.add_column(title, justify="left" if title in ("instance", "reason") else "right", no_wrap=True)
    for one in reversed(snapshot.decisions):
        decisions.add_row(
            one.instance,
            one.reason,
            str(one.turn),
            f"{one.hit_bytes / 1000:.1f} / {one.prompt_bytes / 1000:.1f}",
            f"{one.decision_ms:.1f}",
        )
    return decisions


class PlainView:
    """A line every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 0.0

    def __enter__(self) -> View:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def show(self, snapshot: Snapshot) -> None:
        """Print it, unless the last one was a moment ago."""
        if snapshot.elapsed_s < self._next and snapshot.done < snapshot.total:
            return
        self._next = snapshot.elapsed_s + LINE_EVERY
        sessions = " ".join(str(row.sessions) for row in snapshot.rows)
        flying = " ".join(_or_dash(row.in_flight) for row in snapshot.rows)
        self._console.print(
            f"{snapshot.label}: {_progress(snapshot)}; per instance: sessions now here {sessions}, in flight {flying}; "
            f"cache {_percent(snapshot.hit_ratio)}; {_reasons(snapshot)}",
            highlight=False,
        )


def _progress(snapshot: Snapshot) -> str:
    late = f", {snapshot.late} late" if snapshot.late else ""
    return f"{snapshot.done}/{snapshot.total} requests, {snapshot.failed} failed{late}, {snapshot.elapsed_s:.0f} s"


def _reasons(snapshot: Snapshot) -> str:
    """The most frequent first."""
    ordered = sorted(snapshot.reasons.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{reason} {count}" for reason, count in ordered) or "none yet"


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None or math.isnan(ratio) else f"{100 * ratio:.1f} %"


def _or_dash(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
