"""Request bodies that were kept, rendered and hashed by the product's own code. Nothing that they say is written.

JSONL, or a folder of JSON files, one request each. A request is an object: `body` (as an object, or as its text),
`time` (ISO 8601, or Unix time in seconds), and optional `path` (/v1/chat/completions by default), `output_tokens`,
`duration_s`. In a folder a file may also be the bare body: its time is then the file's.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from extproc.base.errors import RenderError, UnreadableBody, UnsupportedApi
from extproc.prompts.renderer import Renderer
from extproc.requests import apis
from loadgen.workloads.imports.keys import BLOCK_SIZE, Keys
from loadgen.workloads.imports.sessions import Seen, trace
from loadgen.workloads.trace import Trace
from loadgen.workloads.traces.lines import Count, Seconds, TraceError, decode, lines, since_epoch, title
from loadgen.workloads.traces.parsed_trace import Fields, Place

Encode = Callable[[str], "array[int]"]

CHAT = "/v1/chat/completions"
FIELDS = Fields("line", "body", "time", "body", duration="duration_s")


class Line(msgspec.Struct):
    """One request."""

    body: msgspec.Raw
    time: str | float
    path: str = CHAT
    output_tokens: Count | None = None
    duration_s: Seconds | None = None


class _Bare(msgspec.Struct):
    """What tells a bare body from a line: whether it has a body in it."""

    body: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def read(path: Path, model_dir: Path, encode: Encode) -> tuple[Trace, int]:
    """The trace, and how many requests were left out, for their prompts could not be read.

    `encode` is the tokenizer of `model_dir`.

    Raises:
        TraceError: a line is not as above, or a file cannot be read.
        ConfigError: the model directory is none.
    """
    reader = _Reader(model_dir, encode)
    seen: list[Seen] = []
    left_out = 0
    for place, line in _requests(path):
        found = reader.seen(place, line)
        if found is None:
            left_out += 1
        else:
            seen.append(found)
    return trace(path, title(path), BLOCK_SIZE, seen, FIELDS), left_out


class _Reader:
    """Renders with the files of one model."""

    def __init__(self, model_dir: Path, encode: Encode) -> None:
        self._renderer = Renderer.load(model_dir)
        self._encode = encode
        self._keys = Keys()

    def seen(self, place: Place, line: Line) -> Seen | None:
        """What a request's prompt is; None where it cannot be read, or brings no reply."""
        try:
            request = apis.parse(line.path, _text(line.body))
            if not request.prefills:
                return None
            prompt = self._renderer.render(request)
            given = request.prompt
            ids = self._encoded(prompt.data) if given is None or isinstance(given, str) else array("I", given)
            tail = self._encoded(prompt.data[prompt.history :]) if prompt.history else ids
        except (UnsupportedApi, UnreadableBody, RenderError, OverflowError, ValueError):
            return None
        if not ids:
            return None
        runs, marks = self._keys.of(ids, f"{request.model} {request.cache_salt or ''}")
        return Seen(
            place=place,
            at_s=_time(place, line.time),
            input=len(ids),
            history=len(ids) - len(tail),
            turn=request.turn or prompt.replies,
            output=line.output_tokens,
            duration_s=line.duration_s,
            blocks=runs,
            marks=marks,
            stream=request.stream,
        )

    def _encoded(self, data: bytes) -> array[int]:
        return self._encode(data.decode("utf-8", "replace"))


def _requests(path: Path) -> Iterator[tuple[Place, Line]]:
    decoder = msgspec.json.Decoder(Line)
    if not path.is_dir():
        for number, text in lines(path):
            yield Place(path, number), decode(decoder, path, number, text)
        return
    bare = msgspec.json.Decoder(_Bare)
    for file in sorted(path.glob("*.json")):
        try:
            text, when = file.read_bytes(), file.stat().st_mtime
        except OSError as error:
            raise TraceError(file, None, error.strerror or str(error)) from error
        if decode(bare, file, None, text).body is msgspec.UNSET:
            yield Place(file, 1), Line(msgspec.Raw(text), when)
        else:
            yield Place(file, 1), decode(decoder, file, None, text)


def _text(body: msgspec.Raw) -> bytes:
    """A body that was kept as a JSON text, or as the object that it is."""
    raw = bytes(body)
    return msgspec.json.decode(raw, type=str).encode() if raw.startswith(b'"') else raw


def _time(place: Place, when: str | float) -> float:
    if not isinstance(when, str):
        return when
    try:
        return since_epoch(datetime.fromisoformat(when)).total_seconds()
    except ValueError as error:
        raise TraceError(*place, "expected a date and time, or seconds", "time") from error
