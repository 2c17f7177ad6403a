"""KV-cache groups: what they need of a prompt, and how many an engine may have."""

from __future__ import annotations

import pytest

from extproc.kv_events.engines import Stored, UnusableEvents
from extproc.kv_events.groups import ALL, needed
from tests.support.mirrored import BLOCK, Told


def test_no_engine_has_hundreds_of_groups() -> None:
    """A flood of group numbers ends in an error, not in memory."""
    with pytest.raises(UnusableEvents) as caught:
        Told().apply(*(Stored([1], None, [5, 5], BLOCK, group=group) for group in range(100)))
    assert caught.value.cause == "too_many_groups"


@pytest.mark.parametrize(
    ("kind", "window", "block_size", "blocks_needed"),
    [
        (None, None, 16, ALL),
        ("full_attention", None, 16, ALL),
        ("mla_attention", None, 16, ALL),
        ("sink_full_attention", None, 16, ALL),
        ("sliding_window", 256, 32, 8),
        ("sliding_window", 257, 32, 8),
        ("sliding_window", 258, 32, 9),
        ("sliding_window_mla", 128, 16, 8),
        ("sliding_window", 1, 16, 1),
        ("sliding_window", None, 16, ALL),
        ("mamba", None, 544, 1),
        ("chunked_local_attention", None, 16, ALL),
        ("a kind of tomorrow", 5, 16, ALL),
    ],
)
def test_how_much_a_group_needs(kind: str | None, window: int | None, block_size: int, blocks_needed: int) -> None:
    """As in vLLM; what does not say counts as keeping whole prompts."""
    assert needed(kind, window, block_size) == blocks_needed
