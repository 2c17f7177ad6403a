"""Whether the prompts that we render are the ones that the engines cache. Pure; the edges log and count.

A wrong chat template, another tokenizer, or an engine flag that changes the prompt makes every predicted hit zero, and
SMetric a load balancer, without any error. The sign is unmistakable: follow-ups carry history that their engine
computed a moment ago, and yet not one of them finds its first blocks in an index that is full; or in one that stays
empty, though events come.
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

    def broken(self, indexed: int, *, heard: bool) -> bool:
        """Whether nothing matches, though the pool's engines cache prompts.

        `indexed` prompt blocks of them are in the index; or there are none, though their events are `heard`.
        """
        return self.unmatched >= ENOUGH and (indexed > 0 or heard)


def advice(pool: str, unmatched: int, indexed: int) -> str:
    """What an operator should look at."""
    found = f"pool {pool}: none of the last {unmatched} follow-ups matched anything that its engines cache. "
    if indexed:
        look = (
            "Is model_dir the model that they serve, with the same chat template (--chat-template, "
            "--default-chat-template-kwargs)? Compare `python -m extproc explain` with the engine's /tokenize. "
        )
    else:
        look = (
            "Their events come, and yet no block of them can be held. smetric_event_blocks_total says by kind what was "
            "left out: unknown_token means that model_dir is another model's. A model with several KV-cache groups "
            "needs vLLM 0.22 or later and one group that keeps whole prompts. "
        )
    return found + look + "Until then every decision is by load"
