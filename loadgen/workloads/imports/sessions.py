"""Requests as a log shows them -> a trace: who goes on from whom, and how long replies were that nobody wrote down.

A request goes on from the one whose whole blocks its prompt begins with: the longest such prompt, the latest of equals,
if it came earlier and there is room for a reply. The reply is then what its history has more than that prompt. A last
reply, which nothing goes on from, has as many tokens as the pool generates in its time; where no time is known, as many
as the median reply.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from loadgen.workloads.trace import Fact, Runs, Trace, TraceRequest
from loadgen.workloads.traces.parsed_trace import Fields, Place, Recording, checked

REPLY = 200  # tokens of a reply of which nothing at all is known

Mark = tuple[int, int]  # so many leading blocks of a prompt, and their key


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One request of a log. Lengths in tokens, times in seconds of any clock that all requests share."""

    place: Place
    at_s: float
    input: int
    history: int = 0  # up to the end of the last reply in it; 0: there is none, or nobody knows
    turn: int | None = None  # replies that the prompt carries; None: nobody knows
    output: int | None = None
    duration_s: float | None = None
    blocks: Runs = ()
    marks: Sequence[Mark]  # known leading parts of its prompt, ascending; the last one is all of its whole blocks
    stream: bool = True


def trace(path: Path, name: str, block_size: int, seen: Iterable[Seen], fields: Fields) -> Trace:
    """Raises TraceError where that is none, as of a file without requests."""
    requests = sorted(seen, key=lambda request: request.at_s)
    parents = _parents(requests)
    outputs = _outputs(requests, parents)
    began_s = requests[0].at_s if requests else 0.0
    found: list[TraceRequest] = []
    for number, request in enumerate(requests):
        parent = parents.get(number)
        earlier = None if parent is None else found[parent]
        turn = request.turn
        if turn is None:
            turn = 0 if earlier is None else earlier.turn + 1
        found.append(
            TraceRequest(
                id=str(number),
                session=str(number) if earlier is None else earlier.session,
                turn=turn,
                arrival_s=request.at_s - began_s,
                input=request.input,
                output=outputs[number],
                blocks=request.blocks,
                parent=None if earlier is None else earlier.id,
                gap_s=None if earlier is None else _gap(earlier, request.at_s - began_s),
                duration_s=request.duration_s,
                history=request.history
                or (0 if earlier is None else min(request.input, earlier.input + earlier.output)),
                stream=request.stream,
            )
        )
    facts = {Fact.BLOCKS, Fact.INFERRED_SESSIONS, Fact.ARRIVALS}
    if requests and all(request.duration_s is not None for request in requests):
        facts |= {Fact.DURATIONS, Fact.GAPS}
    placed = [(request.place, made) for request, made in zip(requests, found, strict=True)]
    return checked(path, Recording(name, block_size, placed, frozenset(facts), fields))


def _parents(requests: Sequence[Seen]) -> Mapping[int, int]:
    """Whom each request goes on from, by their places in time; those that begin a session are left out."""
    parents: dict[int, int] = {}
    ends: dict[Mark, int] = {}  # all whole blocks of a prompt -> the latest such request
    begun: set[Mark] = set()
    for number, request in enumerate(requests):
        for mark in reversed(request.marks):
            earlier = ends.get(mark)
            if earlier is not None and _goes_on(request, requests[earlier]):
                parents[number] = earlier
                break
        # A bare system prompt, which others had before, is nobody's history.
        if request.marks and ((end := request.marks[-1]) not in begun or end in ends):
            ends[end] = number
        begun.update(request.marks)
    return parents


def _goes_on(request: Seen, earlier: Seen) -> bool:
    if request.turn is not None and earlier.turn is not None and request.turn <= earlier.turn:
        return False
    return request.input > earlier.input and (not request.history or request.history > earlier.input)


def _outputs(requests: Sequence[Seen], parents: Mapping[int, int]) -> Sequence[int]:
    """How many tokens each reply had, at least one."""
    known = {number: request.output for number, request in enumerate(requests) if request.output is not None}
    for child, parent in parents.items():
        if requests[child].history:
            known.setdefault(parent, requests[child].history - requests[parent].input)
    rates = [
        output / duration_s
        for number, output in known.items()
        if (duration_s := requests[number].duration_s) is not None and duration_s > 0
    ]
    rate = median(rates) if rates else None
    usual = round(median(known.values())) if known else REPLY
    found = []
    for number, request in enumerate(requests):
        output = known.get(number)
        if output is None:
            output = usual if rate is None or request.duration_s is None else round(rate * request.duration_s)
        found.append(max(1, output))
    return found


def _history(request: Seen, earlier: TraceRequest | None) -> int:
    return 0 if earlier is None else min(request.input, earlier.input + earlier.output)


def _gap(earlier: TraceRequest, arrival_s: float) -> float | None:
    return None if earlier.duration_s is None else max(0.0, arrival_s - earlier.arrival_s - earlier.duration_s)
