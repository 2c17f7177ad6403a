"""How much of each thing a request may hold to be read: far more than any that an engine serves.

A template goes through every message, and media are looked at for every instance: what a client can send cheaply must
not become work without end. What holds more is routed by load alone, and the engine judges it.
"""

from __future__ import annotations

from typing import Any, Final

from extproc.base.errors import BodyTooCostly

MESSAGES: Final = 16_384  # of a chat, or items of an input; agents send some hundreds, rarely thousands
PARTS: Final = 16_384  # of one message, its calls among them
TOOLS: Final = 8_192
MEDIA: Final = 1_024  # of a whole request; vLLM allows one of a kind by default
PROMPTS: Final = 16_384  # of one completion
TOKEN_IDS: Final = 4_194_304  # no model has a context of so many


def bounded(found: list[Any], most: int, what: str) -> list[Any]:
    """The list itself. Raises BodyTooCostly where it is longer."""
    if len(found) > most:
        raise BodyTooCostly(f"{len(found)} {what}, and {most} are read")
    return found
