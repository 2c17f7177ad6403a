"""NVIDIA aiperf's multi-turn variant of Mooncake's JSONL: sessions whose later turns carry only what is new.

Turn 0: session_id, input_length, output_length, hash_ids (512 tokens a block, the last a part), timestamp (ms),
group_id. Later turns: input_length and hash_ids of the NEW tokens, delay (ms) after the reply before. A prompt is all
that came before, the replies included, and the new tokens.

The whole blocks of turn 0 keep their names. What follows has none in the format that fit its positions (replies have no
ids, and new ids begin a block anew), so each session names its own: it shares them with nobody. When later turns arrive
is reckoned with nominal durations.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from loadgen.workloads.trace import Fact, TraceRequest, cut, joined, length
from loadgen.workloads.traces import nominal
from loadgen.workloads.traces.lines import Count, Length, Milliseconds, Name, TraceError, decode, lines, named, title
from loadgen.workloads.traces.parsed_trace import Fields, Place, Recording

NAME = "aiperf"
TITLE = "multi-turn Mooncake JSONL (NVIDIA aiperf)"
BLOCK_SIZE = 512  # tokens
FIELDS = Fields(id="line", parent="session_id", time="timestamp or delay", input="input_length", gap="delay")


class Line(msgspec.Struct, gc=False):
    """One turn."""

    session_id: str
    input_length: Length
    output_length: Count
    hash_ids: list[Name]
    timestamp: Milliseconds | None = None
    delay: Milliseconds | None = None


def recognises(keys: Mapping[str, object]) -> bool:
    """Whether the first line is one of this format."""
    return {"session_id", "hash_ids", "input_length"} <= keys.keys() and "request_id" not in keys


def read(path: Path) -> Recording:
    """Raises TraceError."""
    decoder = msgspec.json.Decoder(Line)
    sessions: dict[str, list[tuple[int, Line]]] = {}
    highest = 0
    for number, text in lines(path):
        line = decode(decoder, path, number, text)
        whole, rest = divmod(line.input_length, BLOCK_SIZE)
        named(path, number, "hash_ids", len(line.hash_ids), whole, part=rest > 0)
        if line.session_id not in sessions and line.timestamp is None:
            raise TraceError(path, number, "missing; expected in a session's first line", "timestamp")
        sessions.setdefault(line.session_id, []).append((number, line))
        highest = max(highest, max(line.hash_ids, default=0))

    requests: list[tuple[Place, TraceRequest]] = []
    free = highest + 1
    for turns in sessions.values():
        made = _session(turns, free)
        free += made[-1].input // BLOCK_SIZE
        requests += [(Place(path, number), request) for (number, _), request in zip(turns, made, strict=True)]
    facts = {Fact.BLOCKS, Fact.SESSIONS, Fact.GAPS}
    if len({turns[0][1].timestamp for turns in sessions.values()}) > 1:  # else only the format wants a time
        facts.add(Fact.ARRIVALS)
    return Recording(title(path), BLOCK_SIZE, requests, frozenset(facts), FIELDS)


def _session(turns: list[tuple[int, Line]], own: int) -> list[TraceRequest]:
    """`own`: the first of the names that are this session's alone."""
    number, line = turns[0]
    first = cut(joined(line.hash_ids), 0, line.input_length // BLOCK_SIZE)
    request = TraceRequest(
        id=str(number),
        session=line.session_id,
        turn=0,
        arrival_s=(line.timestamp or 0.0) / 1000,
        input=line.input_length,
        output=max(1, line.output_length),
        blocks=first,
    )
    requests = [request]
    for number, line in turns[1:]:
        history = request.input + request.output
        tokens = history + line.input_length
        gap_s = None if line.delay is None else line.delay / 1000
        due_s = nominal.end(request) + (gap_s or 0.0)
        fresh = tokens // BLOCK_SIZE - length(first)
        request = TraceRequest(
            id=str(number),
            session=line.session_id,
            turn=request.turn + 1,
            arrival_s=due_s if line.timestamp is None else max(request.arrival_s, line.timestamp / 1000),
            input=tokens,
            output=max(1, line.output_length),
            blocks=(*first, (own, fresh)) if fresh else first,
            parent=request.id,
            gap_s=gap_s,
            history=history,
        )
        requests.append(request)
    return requests
