"""How much of all bodies together may be held while they are being collected. Pure; it knows no stream.

Envoy sets no limit in FULL_DUPLEX_STREAMED mode, and a client may send most of a body and then nothing: what each
stream may hold does not bound what all of them do.
"""

from __future__ import annotations

TOTAL_BYTES = 128 * 1024 * 1024  # eight of the largest bodies that a route reads by default, or thousands of usual ones


class BodyBudget:
    """A budget of bytes that all streams of a process share."""

    def __init__(self, total: int = TOTAL_BYTES) -> None:
        self._left = total

    def take(self, size: int) -> bool:
        """Take so many bytes, unless there are not so many left."""
        if size > self._left:
            return False
        self._left -= size
        return True

    def give_back(self, size: int) -> None:
        """Give back what was taken."""
        self._left += size
