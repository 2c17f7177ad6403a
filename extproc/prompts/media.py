"""Prompts with images, audio or video in the form in which they are compared with events (`base/media.py`).

Refuses to know templates and tokenizers: whoever has them renders the text with a mark for each medium.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from extproc.base.media import MEDIUM_BYTES, STAND_IN
from extproc.base.model import MediaText
from extproc.prompts.message_shapes import MARK


def media_text(head: bytes, rest: str, history: int, kinds: Sequence[str], encode: Callable[[str], bytes]) -> MediaText:
    """`head` is the text before the first medium; `rest`, with marks, goes on from there, and `history` counts its
    characters. `encode` gives the bytes of a text, loosely. A mark of somebody else's stands for a medium too."""
    tail = _loosely(rest, encode)
    told = len(_loosely(rest[: max(0, history)], encode))
    places = zip(_places(head + tail, len(head)), kinds, strict=False)
    return MediaText(head + tail, len(head) + told, len(head), list(places))


def _loosely(text: str, encode: Callable[[str], bytes]) -> bytes:
    return STAND_IN.join(map(encode, text.split(MARK)))


def _places(data: bytes, start: int) -> Iterator[int]:
    while (place := data.find(STAND_IN, start)) >= 0:
        yield place
        start = place + MEDIUM_BYTES
