"""A workload as plain data: requests of sessions, with names for the blocks of their prompts. No tokens, no I/O.

Every reader (`traces/`), the generator, the study, the simulator and the replay speak in these. Blocks are named by
integers that are unique in the trace: equal names are equal prefixes (a name stands for its block and all before it),
so two prompts share exactly their common leading names. Names come in runs, because an agent's prompt of a thousand
blocks is a handful of runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

Runs = tuple[tuple[int, int], ...]  # (first name, count): the names first, first + 1, ... first + count - 1


class Dispatch(StrEnum):
    """When a follow-up is sent: results differ by about 30 %, so it is fixed for an experiment."""

    TRACE = "trace"  # at its timestamp, or at its parent's end where that is later
    THINK = "think"  # its gap after its parent's end


class Trigger(StrEnum):
    """What made an agent send a request."""

    USER = "user"
    AGENT = "agent"  # a tool's result, another agent
    COMPACTION = "compaction"  # the history was dropped for a summary


class Fact(StrEnum):
    """What a format may or may not say of its requests. A study answers what the facts allow."""

    BLOCKS = "blocks"  # names of prompt blocks: reuse
    SESSIONS = "sessions"  # which requests belong together
    INFERRED_SESSIONS = "inferred sessions"  # not said, but each request goes on from a whole earlier prompt
    TRIGGERS = "triggers"
    GAPS = "gaps"  # how long a client thought after the reply before
    DURATIONS = "durations"  # how long a request took
    SYSTEM = "system prompts"  # how long the system prompt and the tools are
    ARRIVALS = "arrivals"  # when sessions began, on a clock that all share


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One request. Lengths in tokens, times in seconds since the trace began."""

    id: str
    session: str
    turn: int  # assistant replies that the prompt carries: 0 for a first request, and after a compaction
    arrival_s: float
    input: int  # the whole prompt
    output: int  # at least 1
    blocks: Runs = ()  # names of the prompt's blocks; the last may be a part of one. Empty where the format has none
    parent: str | None = None  # the request whose end this one waited for: the turn before, or where a fork began
    trigger: Trigger | None = None
    gap_s: float | None = None  # between the parent's end and this request
    duration_s: float | None = None
    system: int = 0  # of the prompt, the leading tokens that are system prompt and tools
    history: int = 0  # of the prompt, the leading tokens up to the end of the last assistant reply
    tools: int = 0  # of `system`, the tokens that define tools; a request with tools may be answered by a call of one
    stream: bool = True  # whether the reply is asked for token by token


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of arrival; a parent stands before its children."""

    name: str
    block_size: int  # tokens
    requests: Sequence[TraceRequest]
    facts: frozenset[Fact] = field(default_factory=lambda: frozenset(Fact) - {Fact.INFERRED_SESSIONS})

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last."""
        return self.requests[-1].arrival_s - self.requests[0].arrival_s if self.requests else 0.0


def names(runs: Runs) -> Iterator[int]:
    """The names one by one."""
    for first, count in runs:
        yield from range(first, first + count)


def length(runs: Runs) -> int:
    """How many names there are."""
    return sum(count for _, count in runs)


def cut(runs: Runs, start: int, end: int) -> Runs:
    """The names at positions `start` to `end`, as far as there are any."""
    cut: list[tuple[int, int]] = []
    position = 0
    for first, count in runs:
        low, high = max(start, position), min(end, position + count)
        if low < high:
            cut.append((first + low - position, high - low))
        position += count
    return tuple(cut)


def common(a: Runs, b: Runs) -> int:
    """How many leading names two prompts share."""
    shared = 0
    i = j = 0
    at_i = at_j = 0  # names of the current runs that are already compared
    while i < len(a) and j < len(b):
        if a[i][0] + at_i != b[j][0] + at_j:
            break
        step = min(a[i][1] - at_i, b[j][1] - at_j)
        shared += step
        at_i += step
        at_j += step
        if at_i == a[i][1]:
            i, at_i = i + 1, 0
        if at_j == b[j][1]:
            j, at_j = j + 1, 0
    return shared


def merged(runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Runs -> ranges (first, end) that neither overlap nor touch, ascending."""
    low = high = None
    for first, count in sorted(runs):
        if low is None or high is None or first > high:
            if low is not None and high is not None:
                yield low, high
            low, high = first, first + count
        else:
            high = max(high, first + count)
    if low is not None and high is not None:
        yield low, high


class Dense:
    """Small names, 0 to `count`, in place of given ones: what was a run stays a run."""

    def __init__(self, prompts: Iterable[Runs]) -> None:
        self._starts: list[int] = []
        self._shifts: list[int] = []
        self.count = 0
        for first, end in merged({run for runs in prompts for run in runs}):
            self._starts.append(first)
            self._shifts.append(self.count - first)
            self.count += end - first

    def of(self, runs: Runs) -> Runs:
        """The small names of runs that were given, or of parts of them."""
        return tuple((first + self._shifts[bisect_right(self._starts, first) - 1], count) for first, count in runs)


def joined(sequence: Sequence[int]) -> Runs:
    """Names one by one -> runs."""
    runs: list[tuple[int, int]] = []
    for name in sequence:
        if runs and runs[-1][0] + runs[-1][1] == name:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((name, 1))
    return tuple(runs)
