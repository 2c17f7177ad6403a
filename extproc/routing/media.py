"""Prompts with media: what was sent where counts for what the events cannot tell.

Events show what an instance holds of a prompt's text up to its first image, audio or video. From there on it counts
which of the conversation's replies the instance was asked for, as long as its events do not deny that it holds them:
while it holds the text before the medium. When it is cleared or forgotten, the index forgets what was sent there too.
"""

from __future__ import annotations

from extproc.routing.query import Query

# How much of the text before the first medium may be missing. An engine caches whole blocks of its own, of 16 to some
# hundred tokens, so the last text before a medium is never cached by itself.
_SPARE_BLOCKS = 4
_SPARE_SHARE = 4  # or a fourth of it: blocks of hybrid models are long


def hit(query: Query, name: str, held: int, block_bytes: int) -> int:
    """Bytes of a prompt that the instance of this name has cached; its events tell of `held` blocks."""
    told = held * block_bytes
    count = query.media.sent.get(name, 0) if query.media is not None else 0
    whole = len(query.chain)
    if query.media is None or not count or held < whole - max(_SPARE_BLOCKS, whole // _SPARE_SHARE):
        return told
    return max(told, query.media.ends[count - 1])
