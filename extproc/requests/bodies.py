"""The bytes of a request's body as JSON, read as vLLM reads them: with Python's `json.loads`.

That takes UTF-8 with a byte-order mark, UTF-16 and UTF-32, with a mark or without one, and numbers that are no JSON
(NaN, Infinity). msgspec, which is several times as fast, takes plain UTF-8 and JSON. Every reader of bodies goes
through this module. Refuses to know what a document should hold.
"""

from __future__ import annotations

import codecs
import json
from typing import Any

import msgspec

from extproc.base.errors import UnreadableBody


def utf8(body: bytes) -> bytes:
    """The body in UTF-8 without a byte-order mark: the very same object where it is so already.

    Raises UnreadableBody where the bytes are not what their beginning says, and nothing else.
    """
    encoding = json.detect_encoding(body[:4])
    if encoding == "utf-8":
        return body
    if encoding == "utf-8-sig":
        return body[len(codecs.BOM_UTF8) :]
    try:
        return body.decode(encoding).encode()
    except UnicodeError as error:
        raise UnreadableBody(f"the body begins as {encoding} and is not: {error}") from error


def document(body: bytes) -> Any:
    """The JSON document in a body. Of a duplicate key the last value counts; integers of any size are kept.

    Raises UnreadableBody where there is none, or one with half a surrogate pair, which no tokenizer takes; and nothing
    else.
    """
    try:
        return msgspec.json.decode(utf8(body))
    except (UnreadableBody, msgspec.DecodeError) as error:
        return _as_python_reads(body, error)
    except RecursionError as error:
        raise UnreadableBody("the body is nested too deeply") from error


def _as_python_reads(body: bytes, refusal: Exception) -> Any:
    try:
        read = json.loads(body)
        json.dumps(read, ensure_ascii=False).encode()
        return read
    except (ValueError, RecursionError):
        raise UnreadableBody(f"the body is not JSON: {refusal}") from refusal
