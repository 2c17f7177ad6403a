"""KV-cache events as the router understands them, whichever engine sent them. Pure values; no wire format, no text.

An engine's adapter is one file with one function, `decode(payload: bytes) -> Batch`. It raises `UnusableEvents` for a
payload that it cannot read, and so do the batch's events for one of them. Block hashes are unsigned 64-bit integers: an
engine's own hash, folded by `fold`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from extproc.base.errors import ExtProcError


class Tier(StrEnum):
    """Where a block lies. Only `GPU` is an instance's local cache; the others are counted and shown."""

    GPU = "GPU"
    CPU = "CPU"
    STORAGE = "STORAGE"
    OTHER = "OTHER"


@dataclass(frozen=True, slots=True)
class Stored:
    """Consecutive blocks of one prompt, each now in the cache once more than before.

    `tokens` covers whole blocks of `block_size` tokens. A group that does not keep all of a prompt may announce fewer
    hashes than blocks, or none: then which tokens belong to which hash is not known from this event.
    """

    hashes: Sequence[int]
    parent: int | None  # hash of the block before the first; None where the prompt begins
    tokens: Sequence[int]
    block_size: int  # tokens
    adapter: str | None = None  # LoRA adapter's name
    salt: str | None = None  # cache_salt, known only where the prompt begins
    plain: int | None = None  # leading blocks that stand for text alone: the first image ends them; None means all
    tier: Tier = Tier.GPU
    group: int = 0  # KV-cache group: layers that share block tables
    kind: str | None = None  # what attention the group serves, in vLLM's words; None from engines that do not say
    window: int | None = None  # tokens that a sliding-window group looks back
    # Where images, audio or video begin in a block, by its position, in tokens from the block's start: below 0 for a
    # medium that began in a block before.
    media: Mapping[int, Sequence[int]] = field(default_factory=dict)
    told: int | None = None  # where there are media: leading blocks that stand for text and media alone; None means all

    @property
    def follows(self) -> bool:
        """Whether the first block is known to stand directly behind the parent. Tokens that do not fill exactly the
        blocks announced have others among them; later pieces of such an event come without tokens."""
        return not self.tokens or len(self.tokens) == len(self.hashes) * self.block_size

    @property
    def known(self) -> int:
        """How many leading blocks have a text that can be told."""
        limit = self.told if self.media else self.plain
        return len(self.hashes) if limit is None else min(limit, len(self.hashes))

    def tokens_of(self, block: int) -> Sequence[int]:
        """The tokens of the block at this position, where they cover whole blocks."""
        return self.tokens[block * self.block_size : (block + 1) * self.block_size]


@dataclass(frozen=True, slots=True)
class Removed:
    """Each hash names one copy of a block that left the cache."""

    hashes: Sequence[int]
    tier: Tier = Tier.GPU
    group: int = 0


@dataclass(frozen=True, slots=True)
class Cleared:
    """The whole cache is empty."""


Event = Stored | Removed | Cleared


@dataclass(slots=True)
class Batch:
    """What one step of the engine did to its cache, in order. To be read once."""

    # Decoded one by one as they are asked for, so that a reader can stop between any two; None where a piece of that
    # work is done and no event is ready yet. Raises `UnusableEvents`.
    events: Iterator[Event | None]
    # Known when all events are read, or sooner
    timestamp: float = math.nan  # the engine's wall clock, seconds since the epoch
    rank: int | None = None  # data-parallel rank
    skipped: int = 0  # events of kinds that we do not know


class UnusableEvents(ExtProcError):
    """A payload that no adapter can read: what it said about the cache is lost. `cause` is a short slug for metrics."""

    slug = "unusable_events"

    def __init__(self, cause: str, detail: str = "") -> None:
        super().__init__(f"{cause}: {detail}" if detail else cause)
        self.cause = cause


PIECE_TOKENS = 4096  # of one part of an event

Decode = Callable[[bytes], Batch]


def fold(block_hash: int | bytes) -> int:
    """An engine's block hash as an unsigned 64-bit integer; of bytes the last eight, as vLLM itself shortens them."""
    if isinstance(block_hash, int):
        return block_hash & 0xFFFF_FFFF_FFFF_FFFF
    return int.from_bytes(block_hash[-8:], "big")


def pieces(event: Event, blocks: int) -> Iterator[Event]:
    """The same event in parts of at most `blocks` blocks, or fewer large ones, so that others get their turn."""
    if isinstance(event, Cleared):
        yield event
        return
    if isinstance(event, Stored):
        blocks = max(1, min(blocks, PIECE_TOKENS // max(event.block_size, 1)))
    if len(event.hashes) <= blocks:
        yield event
        return
    for start in range(0, len(event.hashes), blocks):
        hashes = event.hashes[start : start + blocks]
        if isinstance(event, Removed):
            yield Removed(hashes, event.tier, event.group)
        else:
            yield _part(event, hashes, start)


def _part(event: Stored, hashes: Sequence[int], start: int) -> Stored:
    """The blocks of an event from block `start` on."""
    if not event.follows:
        # Their places are not known from the tokens: only that these follow those of the part before.
        parent = event.hashes[start - 1] if start else event.parent
        return replace(event, hashes=hashes, parent=parent, tokens=() if start else event.tokens)
    size = event.block_size
    behind = bool(event.media) and event.plain is not None and start > event.plain  # the first medium
    return Stored(
        hashes,
        event.hashes[start - 1] if start else event.parent,
        event.tokens[start * size : (start + len(hashes)) * size],
        size,
        event.adapter,
        None if start else event.salt,
        _from(start, event.told if behind else event.plain),
        event.tier,
        event.group,
        event.kind,
        event.window,
        {at - start: places for at, places in event.media.items() if start <= at < start + len(hashes)},
        _from(start, event.told),
    )


def _from(start: int, limit: int | None) -> int | None:
    """A limit of blocks, counted from block `start` on."""
    return None if limit is None else max(limit - start, 0)
