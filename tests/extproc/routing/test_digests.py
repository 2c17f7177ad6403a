"""Which digests of a prompt the access log gets."""

from __future__ import annotations

import pytest

from extproc.routing.digests import REPLY_BLOCKS, depths, told
from extproc.routing.query import Query


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (0, []),
        (1, [1]),
        (2, [1, 2]),
        (3, [1, 2, 3]),
        (5, [1, 2, 3, 4, 5]),
        (12, [1, 2, 3, 4, 6, 8, 12]),
        (13, [1, 2, 3, 4, 6, 8, 12, 13]),
    ],
)
def test_depths_grow_by_half_at_most_and_end_with_the_prompt(blocks: int, expected: list[int]) -> None:
    """So that a common prefix is known to within half, and the prompt itself wholly."""
    assert list(depths(blocks)) == expected


@pytest.mark.parametrize("blocks", [1, 7, 100, 1_600, 100_000])
def test_what_is_told_stays_small(blocks: int) -> None:
    """A line of a log must not grow with the prompt; no key is told whole."""
    chain = [2**63 + block for block in range(blocks)]
    found = told(Query(turn=3, history=blocks * 256, prompt=blocks * 256 + 9, chain=chain), 256)
    digests = str(found["digests"]).split(".")
    assert found["blocks"] == blocks
    assert len(digests) < 40
    assert digests[-1] == f"{chain[-1] & 0xFFFFFFFF:08x}"
    assert len(str(found["history_digests"]).split(".")) == min(blocks, REPLY_BLOCKS)
    assert all(len(digest) == 8 for digest in digests)


def test_a_prompt_that_could_not_be_read_has_none() -> None:
    """Nothing is said of what is not known; a session's first request has no history."""
    assert told(Query(turn=1), 256) == {}
    assert told(Query(prompt=300, chain=[5]), 256)["history_digests"] == ""
