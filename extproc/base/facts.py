"""What an engine said of its cache, for whoever guessed about it between a decision and the engine's events.

Who follows an engine tells every router: in one process by a call, between processes as a message
(`shared_state/fact_exchange.py`). A fact may be lost: guesses end by time too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Fact(NamedTuple):
    """Said by one instance, and already in the index."""

    instance: str  # Instance.name
    lost: bool = False  # cleared, restarted, out of reach or no longer followed: nothing guessed before counts
    stored: Sequence[int] = ()  # chain keys of prompt blocks: each is now cached, and so are all before it in its chain
    # Prompt blocks that one block of the engine spans, rounded up. An engine stores whole blocks of its own, so up to
    # so many prompt blocks at the end of a prompt may not be stored although it is prefilled.
    span: int = 1
    age_s: float = 0.0  # how long ago the engine said it: it says nothing of what was decided since
