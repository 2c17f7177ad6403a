"""TraceLab's rounds (uw-syfi/TraceLab), JSONL: lengths and times of coding agents' requests, no hashes.

A round arrives with its last input event (the user's message, the last tool's result) and ends with its last event.
Times without a zone are taken to be UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from loadgen.workloads.trace import Fact, TraceRequest, Trigger
from loadgen.workloads.traces.lines import Count, Length, TraceError, decode, lines, since_epoch, title
from loadgen.workloads.traces.parsed_trace import Fields, Place, Recording

NAME = "tracelab"
TITLE = "TraceLab rounds, JSONL"
BLOCK_SIZE = 16  # tokens; of no meaning, for there are no blocks
FACTS = frozenset({Fact.SESSIONS, Fact.TRIGGERS, Fact.GAPS, Fact.DURATIONS, Fact.ARRIVALS})
FIELDS = Fields(
    id="line",
    parent="session_id",
    time="timing_events",
    input="input_tokens_total",
    gap="timing_events",
    duration="timing_events",
)
INPUTS = {"user_message": Trigger.USER, "tool_result": Trigger.AGENT}


class Event(msgspec.Struct, gc=False):
    """Something that a round took in or put out."""

    event_type: str
    timestamp: datetime


class Line(msgspec.Struct, gc=False):
    """One round."""

    session_id: str
    round_index: Count
    input_tokens_total: Length
    output_tokens: Count
    timing_events: list[Event]


def recognises(keys: Mapping[str, object]) -> bool:
    """Whether the first line is one of this format."""
    return {"round_index", "timing_events"} <= keys.keys()


def read(path: Path) -> Recording:
    """Raises TraceError."""
    decoder = msgspec.json.Decoder(Line)
    rounds: list[tuple[timedelta, timedelta, int, Trigger, Line]] = []  # arrival, end, line's number, trigger, line
    for number, text in lines(path):
        line = decode(decoder, path, number, text)
        inputs = [event for event in line.timing_events if event.event_type in INPUTS]
        if not inputs:
            raise TraceError(path, number, f"expected an event of {' or '.join(INPUTS)}", "timing_events")
        arrival = max(since_epoch(event.timestamp) for event in inputs)
        end = max(since_epoch(event.timestamp) for event in line.timing_events)
        rounds.append((arrival, end, number, INPUTS[inputs[0].event_type], line))
    rounds.sort(key=lambda one: (one[0], one[2]))

    requests: list[tuple[Place, TraceRequest]] = []
    last: dict[str, tuple[TraceRequest, timedelta]] = {}  # session -> its last round and when that ended
    for arrival, end, number, trigger, line in rounds:
        parent, before = last.get(line.session_id, (None, arrival))
        request = TraceRequest(
            id=str(number),
            session=line.session_id,
            turn=0 if parent is None else parent.turn + 1,
            arrival_s=(arrival - rounds[0][0]).total_seconds(),
            input=line.input_tokens_total,
            output=max(1, line.output_tokens),
            parent=None if parent is None else parent.id,
            trigger=trigger,
            gap_s=None if parent is None else max(0.0, (arrival - before).total_seconds()),
            duration_s=(end - arrival).total_seconds(),
            history=0 if parent is None else min(line.input_tokens_total, parent.input + parent.output),
        )
        last[line.session_id] = (request, end)
        requests.append((Place(path, number), request))
    return Recording(title(path), BLOCK_SIZE, requests, FACTS, FIELDS)
