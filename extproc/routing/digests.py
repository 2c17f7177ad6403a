"""What an access log needs so that a workload can be made of it: which prompts begin alike, and who goes on from whom.

Owns which keys of a prompt are told. They are no content, and 32 of their 64 bits tell prompts of one log apart. It
refuses to know the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from extproc.routing.query import Query

# Blocks before the end of the history whose keys are told one by one: a session's last prompt ended a reply before it,
# and replies of agents are rarely longer than 6 KB.
REPLY_BLOCKS = 24


def depths(blocks: int) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12, ... below `blocks`, and `blocks` itself: where two prompts part is known by a third."""
    step = 1
    while step < blocks:
        yield step
        if step > 1 and step + step // 2 < blocks:
            yield step + step // 2
        step *= 2
    if blocks:
        yield blocks


def told(query: Query, block_bytes: int) -> dict[str, str | float]:
    """Digests of a prompt, as fields of the decision in the access log; none where the prompt could not be read."""
    chain = query.chain
    if not chain:
        return {}
    end = min(query.history // block_bytes, len(chain))
    return {
        "block_bytes": block_bytes,
        "blocks": len(chain),
        "digests": _joined([chain[depth - 1] for depth in depths(len(chain))]),
        "history_digests": _joined(chain[max(0, end - REPLY_BLOCKS) : end]),
    }


def _joined(keys: Sequence[int]) -> str:
    return ".".join([f"{key & 0xFFFFFFFF:08x}" for key in keys])
