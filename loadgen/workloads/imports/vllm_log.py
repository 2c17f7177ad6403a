"""The log of a vLLM that says the token ids of its prompts, or a folder of such *.log; other lines are passed over.

They are in `Received request ID: ... prompt_token_ids: [...]` before vLLM 0.12, and in `Request ID details: ...` at
level DEBUG since (--enable-log-requests with VLLM_LOGGING_LEVEL=DEBUG, and no --max-log-len). When a request ended, and
how long its reply was, is in `Generated response ID ...` where the engine logs its outputs (--enable-log-outputs): by
its token ids, or as `LETTERS` letters a token. Lines tell month, day and second: a log that goes over a New Year has no
order.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from loadgen.workloads.imports.keys import BLOCK_SIZE, Keys
from loadgen.workloads.imports.sessions import Seen, trace
from loadgen.workloads.trace import Trace
from loadgen.workloads.traces.lines import TraceError, lines, title
from loadgen.workloads.traces.parsed_trace import Fields, Place

FIELDS = Fields("line", "prompt_token_ids", "the line's time", "prompt_token_ids")
LETTERS: Final = 4  # of a reply, a token
_LINE = re.compile(
    rb"\b(?:DEBUG|INFO) (?P<time>\d\d-\d\d \d\d:\d\d:\d\d) .*?"
    rb"\b(?P<what>Received request|Generated response|Request) (?P<id>[\w.-]+)(?P<rest>.*)",
    re.DOTALL,
)
# What comes last counts: a prompt or a reply that stands before it may hold the same words.
_IDS = re.compile(rb".*\b(?:prompt|output)_token_ids: \[(?P<ids>[\d, ]*)\]", re.DOTALL)
_TEXT = re.compile(rb" ?(?:\(streaming complete\))?: output: (?P<text>.*), output_token_ids: ", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Reply:
    end_s: float
    tokens: int | None


def read(path: Path) -> tuple[Trace, int]:
    """The trace, and how many requests came without token ids. Raises TraceError, also where all did."""
    keys = Keys()
    seen: dict[bytes, Seen] = {}
    replies: dict[bytes, _Reply] = {}
    named: set[bytes] = set()
    for place, text in _lines(path):
        line = _LINE.search(text)
        if line is None or b"(streaming delta)" in line["rest"][:20]:
            continue
        at_s, ids = _time(place, line["time"]), _ids(place, line["rest"])
        if line["what"] == b"Generated response":
            replies.setdefault(line["id"], _Reply(at_s, _tokens(ids, line["rest"])))
            continue
        named.add(line["id"])
        if ids and line["id"] not in seen:
            runs, marks = keys.of(ids)
            seen[line["id"]] = Seen(place=place, at_s=at_s, input=len(ids), blocks=runs, marks=marks)
    if named and not seen:
        remedy = "start vLLM with VLLM_LOGGING_LEVEL=DEBUG beside --enable-log-requests, and without --max-log-len"
        raise TraceError(path, None, f"no request of {len(named)} shows its token ids: {remedy}")
    found = [_ended(request, replies.get(name)) for name, request in seen.items()]
    return trace(path, title(path), BLOCK_SIZE, found, FIELDS), len(named) - len(seen)


def _lines(path: Path) -> Iterator[tuple[Place, bytes]]:
    for file in sorted(path.glob("*.log")) if path.is_dir() else [path]:
        for number, text in lines(file):
            yield Place(file, number), text


def _ids(place: Place, text: bytes) -> array[int]:
    found = _IDS.match(text)
    try:
        return array("I", map(int, found["ids"].split(b","))) if found and found["ids"].strip() else array("I")
    except (ValueError, OverflowError) as error:
        raise TraceError(*place, "expected token ids, joined by commas", "token_ids") from error


def _tokens(ids: array[int], text: bytes) -> int | None:
    if ids:
        return len(ids)
    said = _TEXT.match(text)
    return None if said is None else max(1, len(said["text"]) // LETTERS)


def _ended(request: Seen, reply: _Reply | None) -> Seen:
    if reply is None or reply.end_s < request.at_s:
        return request
    return replace(request, output=reply.tokens, duration_s=reply.end_s - request.at_s)


def _time(place: Place, text: bytes) -> float:
    try:  # of any leap year: only differences count
        return datetime.strptime(f"2000-{text.decode()}", "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise TraceError(*place, "expected a month, a day and a time", FIELDS.time) from error
