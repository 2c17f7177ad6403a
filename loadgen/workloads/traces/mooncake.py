"""Mooncake's JSONL: timestamp (ms), input_length, output_length, hash_ids of 512-token blocks, the last a part.

The format has no sessions. They are inferred: a request goes on from the one whose whole blocks its prompt begins with
(the longest such prompt, the latest of equals), if there is room for that one's reply. Prompts that brought no block of
their own (a bare system prompt) begin nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from loadgen.workloads.trace import Fact, TraceRequest, joined
from loadgen.workloads.traces.lines import Count, Length, Milliseconds, Name, decode, lines, named, title
from loadgen.workloads.traces.parsed_trace import Fields, Place, Recording

NAME = "mooncake"
TITLE = "Mooncake JSONL"
BLOCK_SIZE = 512  # tokens
FACTS = frozenset({Fact.BLOCKS, Fact.INFERRED_SESSIONS, Fact.ARRIVALS})
FIELDS = Fields(id="line", parent="hash_ids", time="timestamp", input="input_length")


class Line(msgspec.Struct, gc=False):
    """One request."""

    timestamp: Milliseconds
    input_length: Length
    output_length: Count
    hash_ids: list[Name]


def recognises(keys: Mapping[str, object]) -> bool:
    """Whether the first line is one of this format."""
    return {"timestamp", "hash_ids"} <= keys.keys() and not {"session_id", "chat_id"} & keys.keys()


def read(path: Path) -> Recording:
    """Raises TraceError."""
    decoder = msgspec.json.Decoder(Line)
    read = []
    for number, text in lines(path):
        line = decode(decoder, path, number, text)
        whole, rest = divmod(line.input_length, BLOCK_SIZE)
        named(path, number, "hash_ids", len(line.hash_ids), whole, part=rest > 0)
        read.append((number, line))
    read.sort(key=lambda numbered: numbered[1].timestamp)

    requests: list[tuple[Place, TraceRequest]] = []
    begun: set[int] = set()  # names of blocks that a prompt had
    ends: dict[int, TraceRequest] = {}  # the last whole block of a prompt -> the latest such request
    for number, line in read:
        ids = line.hash_ids[: line.input_length // BLOCK_SIZE]
        parent = _parent(ids, line.input_length, ends)
        request = TraceRequest(
            id=str(number),
            session=str(number) if parent is None else parent.session,
            turn=0 if parent is None else parent.turn + 1,
            arrival_s=line.timestamp / 1000,
            input=line.input_length,
            output=max(1, line.output_length),
            blocks=joined(line.hash_ids),
            parent=None if parent is None else parent.id,
            history=0 if parent is None else parent.input + parent.output,
        )
        requests.append((Place(path, number), request))
        if ids and (ids[-1] not in begun or ids[-1] in ends):
            ends[ids[-1]] = request
        begun.update(ids)
    return Recording(title(path), BLOCK_SIZE, requests, FACTS, FIELDS)


def _parent(ids: list[int], tokens: int, ends: Mapping[int, TraceRequest]) -> TraceRequest | None:
    for name in reversed(ids):
        earlier = ends.get(name)
        if earlier is not None and earlier.input + earlier.output <= tokens:
            return earlier
    return None
