"""Our own JSONL: what the generator writes, and what any other format can be turned into. One request a line.

Fields: request_id, session_id, parent_request_id (-1: none), turn (from 0), trigger (user, agent, compaction),
timestamp_ms, input_length, output_length, block_size, hash_ids or hash_runs ([first, count] pairs); where known also
gap_ms, duration_ms, system_length, tools_length (of the system's), history_length; `stream` where it is false. The
first line's `facts` says what the whole trace knows; without it, what its lines hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Annotated

import msgspec
from msgspec import UNSET, UnsetType

from loadgen.workloads.trace import Fact, Runs, Trace, TraceRequest, Trigger, joined, length
from loadgen.workloads.traces.lines import Count, Length, Milliseconds, Name, TraceError, decode, lines, named, title
from loadgen.workloads.traces.parsed_trace import Fields, Place, Recording

NAME = "superset"
TITLE = "our superset JSONL"

Id = Annotated[str, msgspec.Meta(min_length=1)] | int
NO_PARENT = -1
FIELDS = Fields("request_id", "parent_request_id", "timestamp_ms", "input_length", "gap_ms", "duration_ms")


class Line(msgspec.Struct, kw_only=True, gc=False):
    """One line."""

    request_id: Id
    session_id: Id
    parent_request_id: Id = NO_PARENT
    turn: Count
    trigger: Trigger | None = None
    timestamp_ms: Milliseconds
    input_length: Length
    output_length: Count
    block_size: Length
    hash_runs: list[tuple[Name, Length]] | UnsetType = UNSET
    hash_ids: list[Name] | UnsetType = UNSET
    gap_ms: Milliseconds | UnsetType = UNSET
    duration_ms: Milliseconds | UnsetType = UNSET
    system_length: Count = 0
    tools_length: Count | UnsetType = UNSET
    history_length: Count = 0
    stream: bool | UnsetType = UNSET
    facts: list[Fact] | UnsetType = UNSET


def recognises(keys: Mapping[str, object]) -> bool:
    """Whether the first line is one of this format."""
    return "request_id" in keys and "input_length" in keys


def read(path: Path) -> Recording:
    """Raises TraceError, also where the block size changes."""
    decoder = msgspec.json.Decoder(Line)
    requests: list[tuple[Place, TraceRequest]] = []
    block_size = 1
    facts: list[Fact] | None = None
    for number, text in lines(path):
        line = decode(decoder, path, number, text)
        if not requests:
            block_size = line.block_size
            facts = None if line.facts is UNSET else line.facts
        if line.block_size != block_size:
            expected = f"expected {block_size} as in the first line, got {line.block_size}"
            raise TraceError(path, number, expected, "block_size")
        requests.append((Place(path, number), _request(path, number, line)))
    known = held([request for _, request in requests]) if facts is None else facts
    return Recording(title(path), block_size, requests, frozenset(known), FIELDS)


def write(trace: Trace, file: IO[bytes]) -> None:
    """Write a trace. Times are rounded to microseconds, so what is read back may differ by half of one."""
    encoder = msgspec.json.Encoder()
    facts: list[Fact] | UnsetType = sorted(trace.facts)
    for request in trace.requests:
        line = Line(
            request_id=request.id,
            session_id=request.session,
            parent_request_id=NO_PARENT if request.parent is None else request.parent,
            turn=request.turn,
            trigger=request.trigger,
            timestamp_ms=_ms(request.arrival_s),
            input_length=request.input,
            output_length=request.output,
            block_size=trace.block_size,
            hash_runs=list(request.blocks) or UNSET,
            gap_ms=UNSET if request.gap_s is None else _ms(request.gap_s),
            duration_ms=UNSET if request.duration_s is None else _ms(request.duration_s),
            system_length=request.system,
            tools_length=request.tools or UNSET,
            history_length=request.history,
            stream=UNSET if request.stream else False,
            facts=facts,
        )
        facts = UNSET
        file.write(encoder.encode(line) + b"\n")


def held(requests: list[TraceRequest]) -> set[Fact]:
    """What the requests themselves show to be known."""
    facts = {Fact.SESSIONS, Fact.ARRIVALS}
    for fact, told in (
        (Fact.BLOCKS, any(request.blocks for request in requests)),
        (Fact.TRIGGERS, any(request.trigger is not None for request in requests)),
        (Fact.GAPS, any(request.gap_s is not None for request in requests)),
        (Fact.DURATIONS, any(request.duration_s is not None for request in requests)),
        (Fact.SYSTEM, any(request.system for request in requests)),
    ):
        if told:
            facts.add(fact)
    return facts


def _request(path: Path, number: int, line: Line) -> TraceRequest:
    if str(line.request_id) == str(NO_PARENT):
        raise TraceError(path, number, f"expected another than {NO_PARENT}, which stands for no parent", "request_id")
    blocks: Runs = ()
    if line.hash_runs is not UNSET:
        blocks = tuple(line.hash_runs)
    elif line.hash_ids is not UNSET:
        blocks = joined(line.hash_ids)
    if blocks:
        whole, rest = divmod(line.input_length, line.block_size)
        field = "hash_ids" if line.hash_runs is UNSET else "hash_runs"
        named(path, number, field, length(blocks), whole, part=rest > 0)
    for field, value in (("system_length", line.system_length), ("history_length", line.history_length)):
        if value > line.input_length:
            raise TraceError(path, number, f"expected at most input_length, got {value}", field)
    tools = 0 if line.tools_length is UNSET else line.tools_length
    if tools > line.system_length:
        raise TraceError(path, number, f"expected at most system_length, got {tools}", "tools_length")
    return TraceRequest(
        id=str(line.request_id),
        session=str(line.session_id),
        turn=line.turn,
        arrival_s=line.timestamp_ms / 1000,
        input=line.input_length,
        output=max(1, line.output_length),
        blocks=blocks,
        parent=None if line.parent_request_id in (NO_PARENT, str(NO_PARENT)) else str(line.parent_request_id),
        trigger=line.trigger,
        gap_s=None if line.gap_ms is UNSET else line.gap_ms / 1000,
        duration_s=None if line.duration_ms is UNSET else line.duration_ms / 1000,
        system=line.system_length,
        history=line.history_length,
        tools=tools,
        stream=line.stream is not False,
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
