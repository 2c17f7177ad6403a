"""What a reader found, line by line, and the one check that makes a trace of it, whatever the format.

Ids are unique, a parent stands before its children, lengths and times are of a likely size, and names of blocks are
small numbers: users of a trace can rely on it. Here a line can still be named. Knows of a format what it calls its
fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from reprlib import repr as shortened
from typing import NamedTuple

from loadgen.workloads.trace import Dense, Fact, Trace, TraceRequest
from loadgen.workloads.traces.lines import MOST_TOKENS, TraceError

# Ten years: language models have not been served for longer. A Unix time among times since the beginning is off by
# fifty, the year 1 or 9999 by more. Gaps and durations are no longer either.
MOST_SPAN_S = 10 * 365.25 * 86_400
MOST_NAMES = 2**40  # a million copies of a trace (`arrivals`) still have names of 64 bits


class Place(NamedTuple):
    """Where a request was read."""

    path: Path
    line: int


class Fields(NamedTuple):
    """What a format calls what is checked, for errors."""

    id: str
    parent: str
    time: str
    input: str
    gap: str = ""
    duration: str = ""


@dataclass(frozen=True, slots=True)
class Recording:
    """What a reader found: requests in the order of the file, unchecked but for what their own lines say."""

    name: str
    block_size: int  # tokens
    requests: Sequence[tuple[Place, TraceRequest]]
    facts: frozenset[Fact]
    fields: Fields


def checked(path: Path, recording: Recording) -> Trace:
    """The trace of a file. Raises TraceError, with the line and the field at fault."""
    fields = recording.fields
    if not recording.requests:
        raise TraceError(path, None, "no requests; expected at least one")
    _unique(recording)
    found = sorted(recording.requests, key=lambda placed: placed[1].arrival_s)
    _timely([(place, request.arrival_s) for place, request in found], fields.time)
    seen: set[str] = set()
    for place, request in found:
        if request.parent is not None and request.parent not in seen:
            expected = "expected a request that arrived no later, of an earlier line if at the same time"
            raise TraceError(*place, f"{expected}; got {shortened(request.parent)}", fields.parent)
        seen.add(request.id)
        if request.input > MOST_TOKENS:
            raise TraceError(*place, f"expected prompts of at most {MOST_TOKENS} tokens", fields.input)
        for field, seconds in ((fields.gap, request.gap_s), (fields.duration, request.duration_s)):
            if seconds is not None and seconds > MOST_SPAN_S:
                raise TraceError(*place, f"expected at most ten years, got {seconds:.3g} s", field)
    requests = _small_names([request for _, request in found])
    return Trace(recording.name, recording.block_size, requests, recording.facts)


def _unique(recording: Recording) -> None:
    seen: dict[str, Place] = {}
    for place, request in recording.requests:
        before = seen.setdefault(request.id, place)
        if before is not place:
            text = f"expected one that no other has, got {shortened(request.id)} as in {before.path}:{before.line}"
            raise TraceError(*place, text, recording.fields.id)


def _timely(arrivals: Sequence[tuple[Place, float]], field: str) -> None:
    """Refuse a span that no recording has; `arrivals` ascend. At fault is the end that is farther from the middle."""
    (first, begin_s), (last, end_s) = arrivals[0], arrivals[-1]
    if end_s - begin_s <= MOST_SPAN_S:
        return
    middle_s = arrivals[(len(arrivals) - 1) // 2][1]
    stray, others = (first, "later") if middle_s - begin_s > end_s - middle_s else (last, "earlier")
    text = f"expected a trace of at most ten years; others are up to {end_s - begin_s:.3g} s {others}"
    raise TraceError(*stray, text, field)


def _small_names(requests: list[TraceRequest]) -> list[TraceRequest]:
    """Names that are hashes or below 0 become small ones; runs stay runs."""
    ends = [end for request in requests for first, count in request.blocks for end in (first, first + count)]
    if not ends or (min(ends) >= 0 and max(ends) <= MOST_NAMES):
        return requests
    dense = Dense(request.blocks for request in requests)
    return [replace(request, blocks=dense.of(request.blocks)) for request in requests]
