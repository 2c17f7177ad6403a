"""Envoy's access log with our decisions, one JSON object a line, as envoy/envoy.yaml writes it.

Of a line are used: `time` (when the request came, ISO 8601), `duration_ms` (optional), and of `smetric`: turn,
prompt_bytes, history_bytes, block_bytes, blocks, digests, history_digests (docs/observability.md). A line without them
is left out: its request was refused, or its prompt could not be read.

A prompt block is a block of the trace, of as many tokens as its bytes are likely to be. Digests tell where two
prompts part to within half of the common part, and to a block where one goes on from the other. Digests of different
routers, or of one before and after a restart, can be compared where they share an index.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from extproc.routing.digests import depths
from loadgen.workloads.imports.sessions import Mark, Seen, trace
from loadgen.workloads.trace import Runs, Trace, length
from loadgen.workloads.traces.lines import TraceError, decode, lines, since_epoch, title
from loadgen.workloads.traces.parsed_trace import Fields, Place

BYTES = 4.0  # of text, a token: English and code have 3.5 to 4.5
FIELDS = Fields("line", "digests", "time", "prompt_bytes")

Bytes = float  # Envoy writes every number of its metadata as a double


class Decision(msgspec.Struct):
    """What is used of a decision. Numbers may stand as 12.0."""

    turn: Bytes = 0
    prompt_bytes: Bytes = 0
    history_bytes: Bytes = 0
    block_bytes: Bytes = 0
    blocks: Bytes = 0
    digests: str = ""
    history_digests: str = ""


class Line(msgspec.Struct):
    """One line. Other members may be there."""

    time: str
    smetric: Decision | None = None
    duration_ms: float | None = None


def read(path: Path, bytes_per_token: float = BYTES) -> tuple[Trace, int]:
    """The trace, and how many lines were left out. Raises TraceError."""
    told, left_out = _told(path)
    size = int(told[0].decision.block_bytes) if told else 1
    block = max(1, round(size / bytes_per_token))
    names = _Names()
    # In the order of coming, which is not that of the log: names are given to what a prompt has first.
    seen = [_seen(one, names, size, block) for one in sorted(told, key=lambda one: one.at_s)]
    return trace(path, title(path), block, seen, FIELDS), left_out


class _Told(NamedTuple):
    place: Place
    at_s: float
    duration_s: float | None
    decision: Decision


def _told(path: Path) -> tuple[list[_Told], int]:
    decoder = msgspec.json.Decoder(Line)
    told: list[_Told] = []
    left_out = 0
    for number, text in lines(path):
        line = decode(decoder, path, number, text)
        decision = line.smetric
        if decision is None or decision.blocks < 1 or not decision.digests:
            left_out += 1
            continue
        size = decision.block_bytes
        if size < 1 or (told and size != told[0].decision.block_bytes):
            before = f"{told[0].decision.block_bytes:g} as before" if told else "a positive number"
            raise TraceError(path, number, f"expected {before}, got {size:g}", "smetric.block_bytes")
        place = Place(path, number)
        duration_s = None if line.duration_ms is None else max(0.0, line.duration_ms / 1000)
        told.append(_Told(place, _time(place, line.time), duration_s, decision))
    return told, left_out


def _seen(told: _Told, names: _Names, size: int, block: int) -> Seen:
    """`size`: bytes of a prompt block, `block`: its tokens."""
    decision = told.decision
    tokens = int(decision.prompt_bytes) * block // size or 1
    marks = sorted(_marks(told.place, decision, int(decision.blocks), size))
    return Seen(
        place=told.place,
        at_s=told.at_s,
        input=tokens,
        history=min(tokens, int(decision.history_bytes) * block // size),
        turn=int(decision.turn),
        duration_s=told.duration_s,
        blocks=names.of(marks, tokens // block),
        marks=marks,
    )


def _marks(place: Place, decision: Decision, blocks: int, size: int) -> Iterator[Mark]:
    whole = list(depths(blocks))
    yield from zip(whole, _keys(place, "digests", decision.digests, len(whole)), strict=True)
    if decision.history_digests:
        end = min(int(decision.history_bytes) // size, blocks)
        keys = _keys(place, "history_digests", decision.history_digests, None)
        for depth, key in zip(range(end - len(keys) + 1, end + 1), keys, strict=True):
            if depth not in whole:
                yield depth, key


def _keys(place: Place, field: str, text: str, count: int | None) -> list[int]:
    try:
        keys = [int(digest, 16) for digest in text.split(".")]
    except ValueError as error:
        raise TraceError(*place, "expected hexadecimal numbers, joined by points", f"smetric.{field}") from error
    if count is not None and len(keys) != count:
        expected = f"expected {count} by smetric.blocks, got {len(keys)}; was it written by another version?"
        raise TraceError(*place, expected, f"smetric.{field}")
    return keys


def _time(place: Place, text: str) -> float:
    try:
        return since_epoch(datetime.fromisoformat(text)).total_seconds()
    except ValueError as error:
        raise TraceError(*place, "expected a date and time", "time") from error


class _Names:
    """Names for blocks of which only some leading parts have keys: what is between two marks goes by the farther."""

    def __init__(self) -> None:
        self._known: dict[Mark, Runs] = {}
        self._free = 0

    def of(self, marks: list[Mark], blocks: int) -> Runs:
        """The names of a prompt of so many whole blocks; `marks` ascend, and may end before it does."""
        runs: Runs = ()
        for mark in marks:
            known = self._known.get(mark)
            runs = self._known[mark] = self._grown(runs, mark[0]) if known is None else known
        return self._grown(runs, blocks)

    def _grown(self, runs: Runs, blocks: int) -> Runs:
        more = blocks - length(runs)
        if more <= 0:
            return runs
        self._free += more
        return (*runs, (self._free - more, more))
