"""What a request costs to read, estimated before the work is done: whoever reads on the event loop must not begin what
takes long.

Owns the two estimates and the figures in them, and refuses to decide what is too long. What a client can send cheaply
may be dear to read: an object of a dozen bytes becomes a dict that is checked, normalised, and rendered by a template.
The figures are what `python -m bench.reading` measures, over several templates; an estimate errs upwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from extproc.base.model import Request
from extproc.requests.media import Medium

# Microseconds of one core of 2026.
BYTE_US: Final = 0.008  # decoding, template, UTF-8 and keys of a long text
OTHER_BYTE_US: Final = 0.08  # ... where there is more than ASCII: it may have to be normalised
BRACKET_US: Final = 1.5  # an object or a list: decoded, checked, put in the engine's order
COMMA_US: Final = 0.2  # a number, or one more key of an object
ITEM_US: Final = 20.0  # what a template goes through for a message, a part of one, or a call
MEDIUM_US: Final = 60.0  # an image, audio or video: the prompt is rendered twice, and its text behind it made loose
COPY_US: Final = 0.0006  # of templates that copy what they have written: for each message, a byte of the body
ENTRY_US: Final = 4.0  # an entry of a tool's schema or a call's arguments, which templates dump with indentation


def decoding_us(body: bytes) -> float:
    """Microseconds that a body takes until its messages are known, and its text afterwards. Costs 2 us a kilobyte."""
    plain = body.isascii() and b"\\u" not in body
    brackets = body.count(b"{") + body.count(b"[")
    per_byte = BYTE_US if plain else BYTE_US + OTHER_BYTE_US
    return len(body) * per_byte + brackets * BRACKET_US + body.count(b",") * COMMA_US


def rendering_us(request: Request, most: float, *, collects: bool = False) -> float:
    """Microseconds that a template takes for the messages and tools of a request, beside its text; counts no further
    than `most`. One that `collects` copies the whole prompt with every message."""
    spent = _entries_us([*(request.tools or ()), request.template_kwargs], most)
    if collects:
        spent += COPY_US * request.size * len(request.messages)
    for message in request.messages:
        content = message["content"]
        parts = () if isinstance(content, str) else content
        calls = message.get("tool_calls") or ()
        spent += ITEM_US * (1 + len(calls)) + sum(MEDIUM_US if isinstance(part, Medium) else ITEM_US for part in parts)
        if calls and spent <= most:
            spent += _entries_us((call["function"]["arguments"] for call in calls), most - spent)
        if spent > most:
            break
    return spent


def _entries_us(values: Iterable[Any], most: float) -> float:
    """Of nested lists and objects, every entry."""
    spent, left = 0.0, list(values)
    while left and spent <= most:
        value = left.pop()
        spent += ENTRY_US
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
    return spent
