"""What reads bytes of others, against odd ones and some that nobody planned; `bench.fuzz` tries millions."""

from __future__ import annotations

import pytest

from bench.fuzz.targets import TARGETS
from bench.fuzz.trial import corpus, fuzz

INPUTS = 1_000  # a second or two; times the target's share


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_no_input_breaks_what_reads_it(target: str) -> None:
    """The corpus, which holds every finding of the past, and changes of it by chance raise nothing."""
    count = len(corpus(target)) + round(INPUTS * TARGETS[target].share)
    found = fuzz(target, count, seed=0).found
    assert {words: data for words, data in found.items() if not words.startswith("slow")} == {}
