"""Alibaba's Bailian JSONL: chat_id, parent_chat_id (-1: none), timestamp (s), input_length, output_length, type, turn
(from 1), hash_ids (16 tokens a block).

A session is a root and its descendants. A parent from before the trace began (no line has it) leaves its child
without one, at the turn that its line says. Every line is a whole prompt. Written to the published description: where
there are fewer ids than whole blocks, the blocks that have none get names of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from loadgen.workloads.trace import Fact, TraceRequest, joined
from loadgen.workloads.traces.lines import Count, Length, Name, Seconds, TraceError, decode, lines, title
from loadgen.workloads.traces.parsed_trace import Fields, Place, Recording

NAME = "bailian"
TITLE = "Bailian JSONL"
BLOCK_SIZE = 16  # tokens
NO_PARENT = -1
FIELDS = Fields(id="chat_id", parent="parent_chat_id", time="timestamp", input="input_length")


class Line(msgspec.Struct, kw_only=True, gc=False):
    """One request. `type` (text, search, image, file) is not used."""

    chat_id: Name
    parent_chat_id: int = NO_PARENT
    timestamp: Seconds
    input_length: Length
    output_length: Count
    turn: Length = 1
    hash_ids: list[int] = []


def recognises(keys: Mapping[str, object]) -> bool:
    """Whether the first line is one of this format."""
    return "chat_id" in keys


def read(path: Path) -> Recording:
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

    chats = {line.chat_id for _, line in read}
    named = any(line.hash_ids for _, line in read)
    free = 1 + max((name for _, line in read for name in line.hash_ids), default=0)
    latest: dict[int, TraceRequest] = {}
    requests: list[tuple[Place, TraceRequest]] = []
    for number, line in read:
        parent = latest.get(line.parent_chat_id)
        missing = max(0, line.input_length // BLOCK_SIZE - len(line.hash_ids)) if named else 0
        request = TraceRequest(
            id=str(line.chat_id),
            session=str(line.chat_id) if parent is None else parent.session,
            turn=line.turn - 1,
            arrival_s=line.timestamp,
            input=line.input_length,
            output=max(1, line.output_length),
            blocks=(*joined(line.hash_ids), (free, missing)) if missing else joined(line.hash_ids),
            parent=str(line.parent_chat_id) if line.parent_chat_id in chats else None,
            history=0 if parent is None else min(line.input_length, parent.input + parent.output),
        )
        free += missing
        latest[line.chat_id] = request
        requests.append((Place(path, number), request))
    facts = {Fact.SESSIONS, Fact.ARRIVALS} | ({Fact.BLOCKS} if named else set())
    return Recording(title(path), BLOCK_SIZE, requests, frozenset(facts), FIELDS)
