"""Azure's CSV of 2023 and 2024: TIMESTAMP, ContextTokens, GeneratedTokens. Arrivals and lengths, nothing else.

Each request stands as a session of its own; no fact claims that it is one. Times without a zone are taken to be UTC.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from reprlib import repr as shortened

from loadgen.workloads.trace import Fact, TraceRequest
from loadgen.workloads.traces.lines import MOST_TOKENS, TraceError, lines, since_epoch, title
from loadgen.workloads.traces.parsed_trace import Fields, Place, Recording

NAME = "azure"
TITLE = "Azure CSV (TIMESTAMP,ContextTokens,GeneratedTokens)"
COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
FIELDS = Fields(id="line", parent="line", time=COLUMNS[0], input=COLUMNS[1])
BLOCK_SIZE = 16  # tokens; of no meaning, for there are no blocks


def recognises(keys: Mapping[str, object]) -> bool:
    """Whether the header is this format's."""
    return set(COLUMNS) <= keys.keys()


def read(path: Path) -> Recording:
    """Raises TraceError."""
    rows = _rows(path)
    _, header = next(rows, (0, []))
    places = [header.index(column) for column in COLUMNS]
    times: list[tuple[timedelta, int, int, int]] = []
    for number, row in rows:
        if len(row) != len(header):
            raise TraceError(path, number, f"expected {len(header)} columns, got {len(row)}")
        when, context, generated = (row[place] for place in places)
        prompt = _tokens(path, number, COLUMNS[1], context, least=1)
        reply = _tokens(path, number, COLUMNS[2], generated, least=0)
        times.append((_time(path, number, when), number, prompt, reply))
    began = min((when for when, *_ in times), default=timedelta())
    requests = [
        (
            Place(path, number),
            TraceRequest(
                id=str(number),
                session=str(number),
                turn=0,
                arrival_s=(when - began).total_seconds(),
                input=prompt,
                output=max(1, reply),
            ),
        )
        for when, number, prompt, reply in times
    ]
    return Recording(title(path), BLOCK_SIZE, requests, frozenset({Fact.ARRIVALS}), FIELDS)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, raw in lines(path):
        try:
            yield number, next(csv.reader([raw.decode().strip()]))
        except UnicodeDecodeError as error:
            raise TraceError(path, number, "not UTF-8; expected CSV in UTF-8") from error
        except csv.Error as error:
            expected = f"expected {','.join(COLUMNS)} in lines that end in a line feed"
            raise TraceError(path, number, f"not valid CSV ({error}); {expected}") from error


def _time(path: Path, number: int, text: str) -> timedelta:
    try:
        return since_epoch(datetime.fromisoformat(text))
    except ValueError as error:
        raise TraceError(path, number, f"expected a date and time, got {shortened(text)}", COLUMNS[0]) from error


def _tokens(path: Path, number: int, column: str, text: str, least: int) -> int:
    digits = text.isdecimal() and len(text) <= len(str(MOST_TOKENS))
    if not digits or not least <= int(text) <= MOST_TOKENS:
        expected = f"expected a whole number from {least} to {MOST_TOKENS}, got {shortened(text)}"
        raise TraceError(path, number, expected, column)
    return int(text)
