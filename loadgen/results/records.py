"""What became of each request: one row, the same from a simulation and from a live replay.

A run is a directory: `run.json` says what was run (`RunInfo`), `requests.jsonl` has a row a request, in the order of
ending. Rows are written as they come, so that an interrupted run keeps what it has. Times in seconds since the run
began, lengths in tokens. Absent values are null.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec

RUN = "run.json"
ROWS = "requests.jsonl"
CSV = "requests.csv"


class Row(msgspec.Struct, kw_only=True, gc=False):
    """One request."""

    request: str
    session: str
    turn: int
    trigger: str | None = None
    due_s: float  # when it should have been sent
    sent_s: float  # when it was
    first_s: float | None = None  # its first token
    end_s: float | None = None  # its last token
    input: int  # prompt tokens
    output: int  # reply tokens asked for
    produced: int = 0  # reply tokens received
    local: int | None = None  # prompt tokens found in the instance's own cache
    fetched: int | None = None  # prompt tokens fetched from the global tier
    instance: str | None = None  # who computed the prompt
    decoder: str | None = None  # who generated the reply, where it is another
    reason: str | None = None  # of the decision
    predicted: int | None = None  # prompt tokens that the router took to be cached there
    load: float | None = None  # of the chosen instance, before this request
    mean_load: float | None = None
    status: int | None = None  # of HTTP; 200 in a simulation
    error: str | None = None  # why it failed, or "unfinished"

    @property
    def ok(self) -> bool:
        """Whether the whole reply came."""
        return self.error is None and self.end_s is not None

    @property
    def ttft_s(self) -> float | None:
        """From sending to the first token."""
        return None if self.first_s is None else self.first_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first; None for fewer than two tokens."""
        if self.first_s is None or self.end_s is None or self.produced < 2:
            return None
        return (self.end_s - self.first_s) / (self.produced - 1)


class RunInfo(msgspec.Struct, kw_only=True):
    """What was run. `window` is what counts: requests due in it; what is before it warmed the caches."""

    kind: str  # "simulate" or "replay"
    label: str  # of a curve in figures: the policy, with its options where they are not the defaults
    policy: str
    options: Mapping[str, float] = {}
    workload: str
    rate: float  # requests a second that were offered; of a replayed recording, the factor of its speed
    seed: int
    instances: Sequence[str]  # names, idle ones included
    window: tuple[float, float]  # seconds
    settings: Mapping[str, str | float | int | bool | None] = {}  # everything else that was chosen
    complete: bool = False  # False while it runs and after an interruption
    wall_s: float = 0.0


class RunWriter:
    """Writes a run's directory. A context manager: what was added is kept however the block is left."""

    def __init__(self, directory: Path, info: RunInfo) -> None:
        """Raises OSError where the directory cannot be written."""
        self._directory = directory
        self._info = info
        directory.mkdir(parents=True, exist_ok=True)
        self._write_info()
        self._rows: IO[bytes] = (directory / ROWS).open("wb")

    def add(self, row: Row) -> None:
        """Append one row. It is in the file when this returns: a process that is killed loses none. Raises OSError."""
        self._rows.write(msgspec.json.encode(row) + b"\n")
        self._rows.flush()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._rows.close()
            self._info.complete = kind is None
        finally:
            self._write_info()

    def _write_info(self) -> None:
        text = msgspec.json.format(msgspec.json.encode(self._info), indent=1)
        written = self._directory / f"{RUN}.new"
        written.write_bytes(text + b"\n")
        written.replace(self._directory / RUN)  # a full disk leaves what was there


def read_info(directory: Path) -> RunInfo:
    """A run's `run.json`. Raises OSError, and msgspec.DecodeError where it is none."""
    return msgspec.json.decode((directory / RUN).read_bytes(), type=RunInfo)


def read_rows(directory: Path) -> Iterator[Row]:
    """A run's rows. A last line that an interruption cut off is left out. Raises OSError and msgspec.DecodeError."""
    decoder = msgspec.json.Decoder(Row)
    with (directory / ROWS).open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield decoder.decode(line)


def export_csv(rows: Iterable[Row], path: Path) -> int:
    """Write rows as CSV with a header of the rows' field names; how many there were."""
    count = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Row.__struct_fields__)
        for row in rows:
            writer.writerow(msgspec.structs.astuple(row))
            count += 1
    return count


@dataclass(frozen=True, slots=True)
class Slo:
    """The service level: time to first token linear in the prompt, and time per output token. Seconds."""

    ttft_s: float = 1.0
    ttft_per_token_s: float = 1e-4
    tpot_s: float = 0.030

    def met(self, row: Row) -> bool:
        """Whether a request met both; TPOT is not asked of fewer than two tokens, and what failed met nothing."""
        if not row.ok or row.ttft_s is None or row.ttft_s > self.ttft_s + self.ttft_per_token_s * row.input:
            return False
        return row.tpot_s is None or row.tpot_s <= self.tpot_s
