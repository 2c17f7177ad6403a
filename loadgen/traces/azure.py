"""Azure's CSV of 2023 and 2024: TIMESTAMP, ContextTokens, GeneratedTokens. Arrivals and lengths, nothing else.

Each request stands as a session of its own; no fact claims that it is one.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from loadgen.trace import Fact, Trace, TraceRequest
from loadgen.traces.lines import TraceError, lines, title

NAME = "azure"
TITLE = "Azure CSV (TIMESTAMP,ContextTokens,GeneratedTokens)"
COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BLOCK_SIZE = 16  # tokens; of no meaning, for there are no blocks


def recognises(keys: Mapping[str, object]) -> bool:
    """Whether the header is this format's."""
    return set(COLUMNS) <= keys.keys()


def read(path: Path) -> Trace:
    """Raises TraceError."""
    rows = _rows(path)
    _, header = next(rows, (0, []))
    places = [header.index(column) for column in COLUMNS]
    times: list[tuple[datetime, int, int, int]] = []
    for number, row in rows:
        if len(row) != len(header):
            raise TraceError(path, number, f"expected {len(header)} columns, got {len(row)}")
        when, context, generated = (row[place] for place in places)
        prompt = _tokens(path, number, COLUMNS[1], context, least=1)
        reply = _tokens(path, number, COLUMNS[2], generated, least=0)
        times.append((_time(path, number, when), number, prompt, reply))
    if not times:
        raise TraceError(path, None, "no requests after the header; expected at least one")
    times.sort()
    began = times[0][0]
    requests = [
        TraceRequest(
            id=str(number),
            session=str(number),
            turn=0,
            arrival_s=(when - began).total_seconds(),
            input=prompt,
            output=max(1, reply),
        )
        for when, number, prompt, reply in times
    ]
    return Trace(title(path), BLOCK_SIZE, requests, frozenset({Fact.ARRIVALS}))


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, raw in lines(path):
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise TraceError(path, number, "not UTF-8; expected CSV in UTF-8") from error
        yield number, next(csv.reader([text.strip()]))


def _time(path: Path, number: int, text: str) -> datetime:
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise TraceError(path, number, f"expected a date and time, got {text!r}", COLUMNS[0]) from error
    return when.replace(tzinfo=None)  # one file has one zone, and only differences count


def _tokens(path: Path, number: int, column: str, text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise TraceError(path, number, f"expected a whole number from {least}, got {text!r}", column)
    return int(text)
