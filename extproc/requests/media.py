"""Images, audio and video in a request: what tells one from another.

Owns the digest of a medium: of its `uuid`, which vLLM takes for its identity too, or else of what the client sent (a
URL, data, embeddings). The same picture sent in two ways has two digests. Refuses to know what an engine makes of it.
"""

from __future__ import annotations

import json
from typing import Any

from xxhash import xxh3_128

DIGEST_BYTES = 16


class Medium(dict[str, Any]):
    """A part of a message that is a medium. To a chat template it is a dict like any other part."""

    __slots__ = ("digest",)

    def __init__(self, kind: str, digest: bytes) -> None:
        super().__init__(type=kind)
        self.digest = digest


def digest(uuid: Any, value: Any) -> bytes:
    """The digest of a medium with this `uuid`, if it has one, and this value: a URL, an object with a `url`, or another
    object. Half a millisecond for each megabyte."""
    if isinstance(uuid, str) and uuid:
        return _digest({"uuid": uuid})
    if isinstance(value, dict) and isinstance(value.get("url"), str):
        value = value["url"]  # and not `detail`, which no engine looks at
    return _digest(value if isinstance(value, dict) else {"url": value})


def _digest(fields: dict[str, Any]) -> bytes:
    hashed = xxh3_128()
    for name in sorted(fields):
        value = fields[name]
        raw = (value if isinstance(value, str) else json.dumps(value)).encode()
        hashed.update(b"%b %d " % (name.encode(), len(raw)))
        hashed.update(raw)
    return hashed.digest()
