"""What tells one conversation with media from another: a key for each reply, which says what that reply answered.

Whoever was sent the same messages with the same media, up to a reply, has answered them. Only what a model reads
counts: roles, texts, media and calls, however a client writes them; not the markers that it moves from turn to turn,
nor thoughts that it may drop. Refuses to know templates, tokens and instances.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from xxhash import xxh3_64_intdigest

from extproc.base.media import MEDIUM_BYTES
from extproc.requests.media import Medium

Message = Mapping[str, Any]


class Turn(NamedTuple):
    """One reply: the key of all that stands before it, and the bytes up to its end, about."""

    key: int
    end: int
    begin: int  # ... and to where it begins


def turns(messages: Sequence[Message], seed: int, head: bytes = b"") -> list[Turn]:
    """Of each reply behind the first medium, and last of the whole, which the next reply answers; nothing without
    media. `seed` tells whose they are, `head` the prompt up to the first medium, with its tools."""
    if not any(map(_media, messages)):
        return []
    found: list[Turn] = []
    seed = xxh3_64_intdigest(head, seed)
    end, media = 0, 0
    for message in messages:
        key, begin = seed, end
        pieces = list(_pieces(message))
        counted = _media(message)
        seed = xxh3_64_intdigest(b"".join(b"%d:%b" % (len(piece), piece) for piece in pieces), seed)
        end += sum(map(len, pieces)) + counted * MEDIUM_BYTES
        if media and message["role"] == "assistant":
            found.append(Turn(key, end, begin))
        media += counted
    return [*found, Turn(seed, end, end)]


def asked(messages: Sequence[Message], seed: int) -> tuple[list[int], int, int]:
    """Keys of all that stands before each reply, up to the end of the last one, and of the whole."""
    replies: list[int] = []
    history = seed
    for message in messages:
        reply = message["role"] == "assistant"
        if reply:
            replies.append(seed)
        pieces = list(_pieces(message))
        seed = xxh3_64_intdigest(b"".join(b"%d:%b" % (len(piece), piece) for piece in pieces), seed)
        if reply:
            history = seed
    return replies, history, seed


def _media(message: Message) -> int:
    content = message["content"]
    return 0 if isinstance(content, str) else sum(isinstance(part, Medium) for part in content)


def _pieces(message: Message) -> Iterator[bytes]:
    yield message["role"].encode()
    content = message["content"]
    for part in [{"text": content}] if isinstance(content, str) else content:
        yield part.digest if isinstance(part, Medium) else str(part.get("text") or "").encode()
    for call in message.get("tool_calls") or ():
        function = call["function"]
        yield json.dumps([function.get("name"), function.get("arguments")], ensure_ascii=False).encode()
