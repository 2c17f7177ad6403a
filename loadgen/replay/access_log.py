"""Puts what Envoy's access log says of ext_proc's decisions into the rows of a run.

The log is the shipped one: a JSON object a line, `path`, and the decision under `smetric`. A request is found by its
path, in which the replay put the run's tag and the request's id.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec

from loadgen.replay.answers import plain
from loadgen.results.records import ROWS, Row, read_rows

POLL_S = 0.1
WAIT_S = 3.0  # for lines that are missing: Envoy writes them a little later than the client has its answers


class Decision(msgspec.Struct):
    """ext_proc's, as far as rows have a place for it; `extproc/processor/destination.py` writes it."""

    reason: str | None = None
    instance: str | None = None
    prefill_instance: str | None = None
    hit_bytes: float = 0.0
    prompt_bytes: float = 0.0
    load: float | None = None
    mean_load: float | None = None


class _Line(msgspec.Struct):
    path: str = ""
    smetric: Decision | None = None


def merge(directory: Path, log: Path, tag: str, *, start: int = 0) -> tuple[int, int]:
    """Write the decisions into a finished run's rows: how many requests had an answer, how many have a decision.

    Args:
        directory: of the run.
        log: what Envoy writes.
        tag: of the run's requests.
        start: bytes of the log that are older than the run.

    Raises:
        OSError: the log or the run cannot be read, or the run not be written.
        msgspec.DecodeError: the run's rows are none.
    """
    rows = list(read_rows(directory))
    answered = {row.request for row in rows if row.status is not None}
    deadline = time.monotonic() + WAIT_S
    while not answered <= (found := dict(_decisions(log, tag, start))).keys() and time.monotonic() < deadline:
        time.sleep(POLL_S)
    for row in rows:
        if decision := found.get(row.request):
            _fill(row, decision)
    written = directory / f"{ROWS}.new"
    written.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    written.replace(directory / ROWS)  # rows are never lost, whenever this is interrupted
    return len(answered), sum(1 for row in rows if row.reason is not None)


def _decisions(log: Path, tag: str, start: int) -> Iterator[tuple[str, Decision | None]]:
    """By request id. Lines of others, and of other formats, are passed over."""
    decoder = msgspec.json.Decoder(_Line)
    mark = f"?request={tag}/".encode()
    with log.open("rb") as lines:
        lines.seek(start)
        for text in lines:
            if mark not in text or not text.endswith(b"\n"):
                continue
            try:
                line = decoder.decode(text)
                (name, *_) = parse_qs(urlsplit(line.path).query).get("request", [""])
            except (msgspec.DecodeError, RecursionError, ValueError):
                continue
            yield name.removeprefix(f"{tag}/"), line.smetric


def _fill(row: Row, decision: Decision) -> None:
    row.reason, row.load, row.mean_load = _plain(decision.reason), decision.load, decision.mean_load
    if decision.prompt_bytes > 0 and 0 <= decision.hit_bytes <= decision.prompt_bytes:
        row.predicted = round(row.input * (decision.hit_bytes / decision.prompt_bytes))
    instance, prefill = _plain(decision.instance), _plain(decision.prefill_instance)
    if prefill:
        row.instance, row.decoder = prefill, row.instance or instance
    row.instance = row.instance or instance


def _plain(text: str | None) -> str | None:
    return None if text is None else plain(text)
