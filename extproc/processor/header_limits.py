"""What of a decision's headers a request has room for: Envoy applies its limits again to what our answer makes of it.

Beyond them it answers 500, though it let the request in and an engine could serve it; a mutation that only removes, or
changes nothing, is held to them as well. The destination is in the metadata too: of the headers it is the first to go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from extproc.base.headers import DESTINATION, POOL, PREFILLER, RANK
from extproc.base.model import Gateway
from extproc.processor.messages import Mutation

CONTENT_LENGTH = "content-length"  # of a changed body; without it Envoy answers 500
# Without its pool a request is led elsewhere; without the others the engine does what they would have told it, itself.
_ORDER = {name: place for place, name in enumerate((CONTENT_LENGTH, POOL, RANK, PREFILLER, DESTINATION))}


class Extent(NamedTuple):
    """How large a set of headers is, as Envoy counts it."""

    lines: int  # each repetition is one
    size: int  # bytes of names and values


def fit(
    mutation: Mutation, headers: Mapping[str, str], extent: Extent, gateway: Gateway
) -> tuple[Mutation, tuple[str, ...]]:
    """As much of a mutation as these headers have room for, and the names of the headers that they have none for."""
    removed = tuple(name for name in mutation.remove_headers if name in headers)
    lines, size = extent.lines - len(removed), extent.size
    if lines > gateway.max_headers or size > gateway.max_header_bytes:
        # With what Envoy adds by itself they are above the limits, which nobody minds while we change no header.
        return replace(mutation, set_headers={}, remove_headers=()), (*mutation.set_headers, *removed)
    kept: dict[str, str] = {}
    for name in sorted(mutation.set_headers, key=lambda name: _ORDER.get(name, len(_ORDER))):
        value = mutation.set_headers[name]
        # A value that is replaced counts on: an estimate that errs to the safe side.
        more_lines, more_size = lines + (name not in headers), size + len(name) + len(value)
        if more_lines <= gateway.max_headers and more_size <= gateway.max_header_bytes:
            kept[name], lines, size = value, more_lines, more_size
    left = tuple(name for name in mutation.set_headers if name not in kept)
    return (replace(mutation, set_headers=kept, remove_headers=removed), left) if left else (mutation, ())


def extent_of(headers: Mapping[str, str]) -> Extent:
    """The extent of headers of which none is repeated."""
    return Extent(len(headers), sum(len(name) + len(value) for name, value in headers.items()))
