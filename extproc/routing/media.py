"""Prompts with media: what events tell of them, and what counts where events cannot tell.

Events show what an instance holds of a prompt's text, before its first image, audio or video and behind it (loosely,
`base/media.py`). They do not show which media stand between: that is known of instances that were asked for a reply to
this very conversation (`requests/reply_keys.py`). Where both agree, that is the hit.

With some models the text cannot be followed past a medium: their processors write words of their own around it. Until
a pool's events were once seen to go past a medium of a kind, what was sent counts behind it, as long as the instance
holds the text up to there. When an instance is cleared or forgotten, the index forgets what was sent there too.
"""

from __future__ import annotations

from collections.abc import Mapping

from extproc.base.media import MEDIUM_BYTES
from extproc.routing.pools.pool import Pool
from extproc.routing.query import Media, Query

# How far before a medium events may end. An engine caches whole blocks of its own, of 16 to some hundred tokens, so the
# last text before a medium is never cached by itself.
_SPARE_BLOCKS = 4
_SPARE_SHARE = 4  # or a fourth of the text before the first: blocks of hybrid models are long

_REPLY_BLOCKS = 2  # of a reply that tell a conversation from others that ask the same


def hit(pool: Pool, query: Query, name: str, held: int) -> int:
    """Bytes of a prompt that the instance of this name has cached; its events tell of `held` leading blocks."""
    told, media = held * pool.block_bytes, query.media
    if media is None:
        return told
    count = media.sent.get(name, 0)
    if not count:
        # Other media behind the same text, unless a reply to them is the same too: then somebody else's notes are gone,
        # or the client writes its media another way every time.
        same = told > media.begin + _REPLY_BLOCKS * pool.block_bytes
        return told if same else min(told, media.plain * pool.block_bytes)
    asked = media.ends[count - 1]
    return asked if told < asked and _blind(pool, media, told) else told


def learn(pool: Pool, query: Query, held: Mapping[str, int]) -> None:
    """Take from a match whether the pool's events can be followed past media."""
    if query.media is not None:
        reached = max(held.values(), default=0) * pool.block_bytes
        behind = MEDIUM_BYTES + pool.block_bytes
        pool.followed.update(kind for place, kind in query.media.places if place + behind < reached)


def _blind(pool: Pool, media: Media, told: int) -> bool:
    """Whether events end at a medium of a kind that they were never seen to go past."""
    size = pool.block_bytes
    spare = max(_SPARE_BLOCKS, media.plain // _SPARE_SHARE)
    for place, kind in media.places:
        if kind not in pool.followed and place - (spare + 1) * size < told <= place + MEDIUM_BYTES + size:
            return True
        spare = _SPARE_BLOCKS
    return False
