"""What one sees while a run goes on: a live table on a terminal, plain lines anywhere else. Draws; measures nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loadgen.demo.summary import WINDOW, Summary

SIDE_BY_SIDE = 3  # policies that fit as columns into 80; more become rows
LINE_EVERY = 5.0  # seconds between two plain lines


@dataclass(frozen=True, slots=True)
class Row:
    """One instance at this moment."""

    name: str
    sessions: int  # whose latest request it served
    requests: int  # served
    in_flight: int | None  # None: unknown
    hit_ratio: float | None  # of the prompt tokens that it served
    index_blocks: int | None


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision of the router, as Envoy's access log shows it."""

    instance: str
    reason: str
    turn: int
    hit_bytes: int
    prompt_bytes: int
    decision_ms: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run at this moment."""

    policy: str
    done: int
    failed: int
    total: int
    elapsed_s: float
    rows: Sequence[Row]
    hit_ratio: float | None  # of all prompt tokens served
    reasons: Mapping[str, int]  # how many decisions were made for each
    decisions: Sequence[Decision]  # the newest last


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
        Text(snapshot.policy, style="bold"),
        ProgressBar(snapshot.total, snapshot.done, width=12),
        f"{snapshot.done}/{snapshot.total} requests, {snapshot.failed} failed, {snapshot.elapsed_s:.0f} s",
    )
    instances = Table(box=None, padding=(0, 1))
    for title in ("instance", "sessions now here", "in flight", "served", "cache hits", "index blocks"):
        instances.add_column(title, justify="left" if title == "instance" else "right", no_wrap=True)
    for row in snapshot.rows:
        instances.add_row(
            row.name,
            str(row.sessions),
            _or_dash(row.in_flight),
            str(row.requests),
            _percent(row.hit_ratio),
            _or_dash(row.index_blocks),
        )
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
    reasons = Text(f" decisions by reason: {_reasons(snapshot)}")
    return Group(head, "", instances, "", reasons, "", decisions)


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
            f"{snapshot.policy}: {snapshot.done}/{snapshot.total} requests, {snapshot.failed} failed, "
            f"{snapshot.elapsed_s:.0f} s; per instance: sessions now here {sessions}, in flight {flying}; "
            f"cache {_percent(snapshot.hit_ratio)}; {_reasons(snapshot)}",
            highlight=False,
        )


def comparison(results: Sequence[tuple[str, Summary]]) -> Table:
    """The policies side by side, the same workload for each."""
    table = Table(
        title="the same workload under each policy",
        title_justify="left",
        title_style="bold",
        caption="request-seconds: the time that requests spent at an instance",
        caption_justify="left",
    )
    summaries = [summary for _, summary in results]
    figures = (  # what it is, as a column's head, and its values
        ("prompt tokens found in the cache", "cached", [_percent(one.hit_ratio) for one in summaries]),
        (
            f"request-seconds in {WINDOW:.0f} s windows, busiest / mean",
            "busiest",
            [f"{s.imbalance:.2f}" for s in summaries],
        ),
        ("TTFT p50", "TTFT p50", [f"{one.ttft_p50 * 1000:.0f} ms" for one in summaries]),
        ("TTFT p90", "p90", [f"{one.ttft_p90 * 1000:.0f} ms" for one in summaries]),
        ("follow-ups back at their session's instance", "back", [_percent(one.stickiness) for one in summaries]),
        ("requests, failed", "requests", [f"{one.requests}, {one.failed}" for one in summaries]),
        ("first turns per instance", "first turns", [_counts(one.first_turns) for one in summaries]),
        ("requests per instance", "per instance", [_counts(one.per_instance) for one in summaries]),
    )
    table.add_column("", no_wrap=True)
    if len(results) <= SIDE_BY_SIDE:
        for policy, _ in results:
            table.add_column(policy, justify="right")
        for title, _, values in figures:
            table.add_row(title, *values)
    else:
        for _, head, _ in figures:
            table.add_column(head, justify="right", no_wrap=True)
        for number, (policy, _) in enumerate(results):
            table.add_row(policy, *(values[number] for _, _, values in figures))
    return table


def _counts(per_instance: Mapping[str, int]) -> str:
    return " ".join(str(count) for count in per_instance.values())


def _reasons(snapshot: Snapshot) -> str:
    """The most frequent first."""
    ordered = sorted(snapshot.reasons.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{reason} {count}" for reason, count in ordered) or "none yet"


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None or math.isnan(ratio) else f"{100 * ratio:.1f} %"


def _or_dash(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
