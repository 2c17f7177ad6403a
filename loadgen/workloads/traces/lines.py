"""Files line by line, plain or gzip, how large a number in them may be, and the one error of all readers.

Knows no format.
"""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from loadgen.command_error import CommandError

T = TypeVar("T")

MOST_TOKENS = 100_000_000  # far over the contexts of models, which are of millions; a larger number is a mistake
LATEST_S = 9e9  # seconds, so Unix times do: up to here a float of milliseconds still tells microseconds apart
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
Length = Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]
Name = Annotated[int, msgspec.Meta(ge=0)]  # of a block: any hash
Seconds = Annotated[float, msgspec.Meta(ge=0, le=LATEST_S)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1000 * LATEST_S)]

GZIP = b"\x1f\x8b"
_FIELD = re.compile(r"^(?P<text>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_ENUM = re.compile(r"^Invalid enum value (?P<value>.*)$", re.DOTALL)
_TOO_LARGE = {"Number out of range", "Integer value out of range"}
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]*)`$")


class TraceError(CommandError):
    """A trace cannot be read: `path:line: field: what was expected`, as far as there is a line and a field."""

    def __init__(self, path: Path, line: int | None, text: str, field: str = "") -> None:
        where = str(path) if line is None else f"{path}:{line}"
        super().__init__(f"{where}: {field}: {text}" if field else f"{where}: {text}")


def title(path: Path) -> str:
    """What a trace is called: its file's name without endings."""
    return Path(path.name.removesuffix(".gz")).stem


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, each with its number from 1, without a byte order mark. Raises TraceError.

    A file that begins with a line of one brace is a single object laid out for reading: it comes as one line.
    """
    number = 0
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == GZIP
        with gzip.open(path) if packed else path.open("rb") as file:
            for number, raw_line in enumerate(file, 1):
                line = raw_line.removeprefix(codecs.BOM_UTF8) if number == 1 else raw_line
                if line.strip() == b"{" and number == 1:
                    yield number, line + file.read()
                elif line.strip():
                    yield number, line
    except OSError as error:  # gzip.BadGzipFile is one
        raise TraceError(path, number + 1 if number else None, error.strerror or str(error)) from error
    except (EOFError, zlib.error) as error:
        raise TraceError(path, number + 1, "the gzip file is cut off or damaged; expected it whole") from error


def first(path: Path) -> tuple[int, bytes]:
    """The first line that is not blank, with its number. Raises TraceError, also where there is none."""
    for line in lines(path):
        return line
    raise TraceError(path, None, "the file is empty; expected a trace")


def decode(decoder: msgspec.json.Decoder[T], path: Path, number: int | None, text: bytes) -> T:
    """One JSON value, checked. Raises TraceError that names the field and what was expected."""
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise explained(path, number, error) from error
    except msgspec.DecodeError as error:
        if "UTF-8" in str(error):
            raise TraceError(path, number, "not UTF-8; expected JSON in UTF-8") from error
        raise TraceError(path, number, f"not valid JSON, or cut off ({error}); expected one whole object") from error
    except RecursionError as error:
        raise TraceError(path, number, "JSON nested too deeply; expected what docs/workloads.md describes") from error


def since_epoch(when: datetime) -> timedelta:
    """A date and time on one clock for all: without a zone it is taken to be UTC, whatever this machine's is."""
    return (when if when.tzinfo is not None else when.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)


def named(path: Path, number: int, field: str, count: int, whole: int, *, part: bool) -> None:
    """Check how many names a prompt has: one a whole block, one more where the last is a part. Raises TraceError."""
    if count not in (whole, whole + part):
        more = ", or one more for a part of a block" if part else ""
        raise TraceError(path, number, f"expected {whole} names by the prompt's length{more}; got {count}", field)


def explained(path: Path, number: int | None, error: msgspec.ValidationError) -> TraceError:
    """msgspec's words on a value of the wrong shape -> field and expectation."""
    match = _FIELD.match(str(error))
    text, where = (match["text"], match["path"] or "") if match else (str(error), "")
    where = where.removeprefix("$").removeprefix(".")
    if missing := _MISSING.match(text):
        field = f"{where}.{missing['field']}" if where else missing["field"]
        return TraceError(path, number, "missing; expected in every line", field)
    if text in _TOO_LARGE:
        return TraceError(path, number, f"expected at most {MOST_TOKENS} tokens, or {LATEST_S:g} seconds", where)
    if other := _ENUM.match(text):
        return TraceError(path, number, f"expected a value that docs/workloads.md lists, got {other['value']}", where)
    return TraceError(path, number, text[:1].lower() + text[1:], where)
