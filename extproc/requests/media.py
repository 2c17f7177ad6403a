"""Images, audio and video in a request: what tells one from another.

Owns the digest of a medium: of its `uuid`, which vLLM takes for its identity too, or else of what the client sent (a
URL, data, embeddings). The same picture sent in two ways has two digests; a URL that is signed anew for every request
has one. Refuses to know what an engine makes of it.
"""

from __future__ import annotations

import json
import re
from typing import Any

from xxhash import xxh3_128

DIGEST_BYTES = 16
# Of S3 and its like, of Google's and Azure's stores, and of CloudFront.
_SIGNATURE = re.compile(
    "(?:x-amz-[a-z-]+|x-goog-[a-z-]+|awsaccesskeyid|googleaccessid|expires|signature|key-pair-id|policy"
    "|sv|st|se|sr|sp|sig|spr|sip|skoid|sktid|skt|ske|sks|skv)=",
    re.IGNORECASE,
)


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
    if isinstance(value, dict):
        return _digest(value)
    return _digest({"url": _unsigned(value) if isinstance(value, str) else value})


def _unsigned(url: str) -> str:
    """A URL without the parameters by which stores sign it for a while."""
    place, _, query = url.partition("?") if url.startswith("http") else (url, "", "")
    kept = [each for each in query.split("&") if not _SIGNATURE.match(each)]
    return f"{place}?{'&'.join(kept)}" if any(kept) else place


def _digest(fields: dict[str, Any]) -> bytes:
    hashed = xxh3_128()
    for name in sorted(fields):
        value = fields[name]
        raw = (value if isinstance(value, str) else json.dumps(value)).encode()
        hashed.update(b"%b %d " % (name.encode(), len(raw)))
        hashed.update(raw)
    return hashed.digest()
