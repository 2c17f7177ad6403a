"""Whether the prompts that we render are the ones that the engines cache. Pure; the edges log and count.

A wrong chat template, another tokenizer, or an engine flag that changes the prompt makes every predicted hit zero, and
SMetric a load balancer, without any error. The sign is unmistakable: follow-ups carry history that their engine
computed a moment ago, and yet not one of them finds its first blocks in an index that is full.
"""

from __future__ import annotations

# Follow-ups without any match before we speak. One session on an evicted instance makes a few; a pool makes so many
# in a row only where nothing can match.
ENOUGH = 20
MIN_BLOCKS = 2  # a shorter prompt may be younger than the events of its first block


class Agreement:
    """What follow-ups of one pool found in the index since the last match."""

    def __init__(self) -> None:
        self.unmatched = 0  # follow-ups in a row

    def note(self, turn: int, blocks: int, *, matched: bool) -> None:
        """A follow-up was looked up, `blocks` prompt blocks long; whether any instance held its first block."""
        if turn > 0 and blocks >= MIN_BLOCKS:
            self.unmatched = 0 if matched else self.unmatched + 1

    def broken(self, indexed: int) -> bool:
        """Whether nothing matches, though `indexed` prompt blocks of the pool's engines are in the index."""
        return self.unmatched >= ENOUGH and indexed > 0


def advice(pool: str, unmatched: int) -> str:
    """What an operator should look at."""
    return (
        f"pool {pool}: none of the last {unmatched} follow-ups matched anything that its engines cache. Is model_dir "
        "the model that they serve, with the same chat template (--chat-template, --default-chat-template-kwargs)? "
        "Compare `python -m extproc explain` with the engine's /tokenize. Until then every decision is by load"
    )
