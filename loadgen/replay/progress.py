"""A replay at this moment, for people: counted row by row, so that a look costs the same however long it has run.

What only the gateway or its engines know (requests in flight, what is indexed, decisions) is for others to add.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from loadgen.replay.replay import Counts
from loadgen.results.records import Row


@dataclass(frozen=True, slots=True)
class InstanceRow:
    """One instance at this moment."""

    name: str
    sessions: int  # whose latest request it served
    requests: int  # served
    hit_ratio: float | None  # of the prompt tokens that it served
    in_flight: int | None = None  # None: unknown
    index_blocks: int | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision of the router, as Envoy's access log shows it."""

    instance: str
    reason: str
    turn: int
    hit_bytes: int
    prompt_bytes: int
    decision_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A run at this moment."""

    label: str
    done: int
    failed: int
    late: int
    total: int
    elapsed_s: float
    rows: Sequence[InstanceRow]
    hit_ratio: float | None  # of all prompt tokens served
    reasons: Mapping[str, int] = field(default_factory=dict)  # how many decisions were made for each
    decisions: Sequence[Decision] = ()  # the newest last


@dataclass(slots=True)
class _Served:
    requests: int = 0
    prompt: int = 0  # tokens
    cached: int = 0

    def add(self, row: Row) -> None:
        self.requests += 1
        self.prompt += row.input
        self.cached += row.local or 0

    @property
    def hit_ratio(self) -> float | None:
        return self.cached / self.prompt if self.prompt else None


class Progress:
    """What the rows so far come to."""

    def __init__(self, label: str, total: int, counts: Counts, instances: Sequence[str] = ()) -> None:
        """`instances`: those to show from the start; others follow as they answer."""
        self._label = label
        self._total = total
        self.counts = counts
        self._began = time.monotonic()
        self._served = {name: _Served() for name in instances}
        self._all = _Served()
        self._latest: dict[str, str] = {}  # session -> instance of its latest request

    def add(self, row: Row) -> None:
        """Take in a request that has ended."""
        if not row.ok:
            return
        self._all.add(row)
        if row.instance is not None:
            self._served.setdefault(row.instance, _Served()).add(row)
            self._latest[row.session] = row.instance

    def snapshot(self) -> Snapshot:
        """How it stands."""
        sessions = Counter(self._latest.values())
        rows = [
            InstanceRow(name, sessions[name], served.requests, served.hit_ratio)
            for name, served in self._served.items()
        ]
        counts = self.counts
        return Snapshot(
            label=self._label,
            done=counts.done,
            failed=counts.failed,
            late=counts.late,
            total=self._total,
            elapsed_s=time.monotonic() - self._began,
            rows=rows,
            hit_ratio=self._all.hit_ratio,
        )
