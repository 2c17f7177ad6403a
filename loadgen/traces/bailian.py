"""Alibaba's Bailian JSONL: chat_id, parent_chat_id (-1: none), timestamp (s), input_length, output_length, type, turn
(from 1), hash_ids (16 tokens a block).

A session is a root and whoever descends from it. A parent from before the trace began leaves its child without one, at
the turn that its line says. Every line is a whole prompt. Written to the published description: fewer ids than blocks
are taken as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from loadgen.trace import Fact, Trace, TraceRequest, joined
from loadgen.traces.lines import Count, Length, Seconds, TraceError, decode, lines, title

NAME = "bailian"
TITLE = "Bailian JSONL"
BLOCK_SIZE = 16  # tokens


class Line(msgspec.Struct, kw_only=True, gc=False):
    """One request. `type` (text, search, image, file) is not used."""

    chat_id: int
    parent_chat_id: int = -1
    timestamp: Seconds
    input_length: Length
    output_length: Count
    turn: Length = 1
    hash_ids: list[int] = []


def recognises(keys: Mapping[str, object]) -> bool:
    """Whether the first line is one of this format."""
    return "chat_id" in keys


def read(path: Path) -> Trace:
    """Raises TraceError."""
    decoder = msgspec.json.Decoder(Line)
    read = []
    for number, text in lines(path):
        line = decode(decoder, path, number, text)
        most = -(-line.input_length // BLOCK_SIZE)
        if len(line.hash_ids) > most:
            raise TraceError(
                path, number, f"expected at most {most} by input_length, got {len(line.hash_ids)}", "hash_ids"
            )
        read.append((number, line))
    read.sort(key=lambda numbered: numbered[1].timestamp)

    requests: dict[int, TraceRequest] = {}
    for number, line in read:
        if line.chat_id in requests:
            raise TraceError(path, number, f"expected one that no other line has, got {line.chat_id}", "chat_id")
        parent = requests.get(line.parent_chat_id)
        requests[line.chat_id] = TraceRequest(
            id=str(line.chat_id),
            session=str(line.chat_id) if parent is None else parent.session,
            turn=line.turn - 1,
            arrival_s=line.timestamp,
            input=line.input_length,
            output=max(1, line.output_length),
            blocks=joined(line.hash_ids),
            parent=None if parent is None else parent.id,
            history=0 if parent is None else min(line.input_length, parent.input + parent.output),
        )
    facts = {Fact.SESSIONS, Fact.ARRIVALS}
    if any(request.blocks for request in requests.values()):
        facts.add(Fact.BLOCKS)
    return Trace(title(path), BLOCK_SIZE, list(requests.values()), frozenset(facts))
