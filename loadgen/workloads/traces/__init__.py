"""Traces in the formats of others and in our own, one module each; which it is, the first line tells.

A format's module has NAME, TITLE, `recognises(keys)`: whether an object with these keys (of a CSV file: a header of
these columns) begins such a file, and `read(path)`. A new format is a new file and an entry in FORMATS. What every
trace must hold, `recording` checks for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from loadgen.workloads.trace import Trace
from loadgen.workloads.traces import aiperf, azure, bailian, claude_code, mooncake, own_jsonl, tracelab
from loadgen.workloads.traces.lines import TraceError, decode, first
from loadgen.workloads.traces.parsed_trace import Recording, checked

__all__ = ["FORMATS", "TraceError", "load"]


class Format(Protocol):
    """What a format's module offers."""

    NAME: str
    TITLE: str

    def recognises(self, keys: Mapping[str, object]) -> bool:
        """Whether the first line is one of this format."""

    def read(self, path: Path) -> Recording:
        """What the file holds. Raises TraceError."""


FORMATS: tuple[Format, ...] = (own_jsonl, claude_code, mooncake, aiperf, bailian, azure, tracelab)


def load(path: Path) -> Trace:
    """Read a trace, plain or gzip; of a directory, all Claude Code sessions in it.

    Raises TraceError where it cannot be read or is of no known format.
    """
    return checked(path, claude_code.read(path) if path.is_dir() else detect(path).read(path))


def detect(path: Path) -> Format:
    """The format of a file, by its first line. Raises TraceError."""
    number, text = first(path)
    if text.lstrip().startswith(b"{"):
        keys: Mapping[str, object] = decode(msgspec.json.Decoder(dict[str, msgspec.Raw]), path, number, text)
    else:
        keys = dict.fromkeys(text.decode(errors="replace").strip().split(","))
    for known in FORMATS:
        if known.recognises(keys):
            return known
    titles = "; ".join(known.TITLE for known in FORMATS)
    raise TraceError(path, number, f"no known trace format; expected one of: {titles}")
