"""Hints of what was just sent where: they bridge moments, and are bounded."""

from __future__ import annotations

from extproc.routing.pools.speculation import Speculation

A = [1, 2, 3, 4]


B = [1, 2, 5, 6]


C = [7, 8, 9]

# Prompts are paths in a small tree, a block's key the number that the path spells.


def test_a_burst_of_follow_ups_finds_its_prompt() -> None:
    """Until the engine's events come, a prompt just sent counts as held by its instance, whatever follows it."""
    sent = Speculation(ttl_s=5.0)
    assert sent.match(A, {}, 0.0) == {}
    sent.note("a", A, 0, 0.0)
    assert sent.match([*A, 9], {}, 1.0) == {"a": 4}
    assert sent.match([*A[:3], 9], {"b": 2}, 1.0) == {"a": 3, "b": 2}
    assert sent.match(C, {"b": 2}, 1.0) == {"b": 2}
    assert sent.match([*A, 9], {}, 5.0) == {}


def test_only_the_unknown_part_is_remembered() -> None:
    """Blocks that the index knew are not kept; what follows them adds to the index's answer."""
    sent = Speculation()
    sent.note("a", A, 2, 0.0)
    assert len(sent) == 2
    assert sent.match([*A, 9], {"a": 2, "b": 1}, 1.0) == {"a": 4, "b": 1}
    assert sent.match([*A, 9], {"a": 3}, 1.0) == {"a": 4}
    assert sent.match([*A, 9], {"a": 5}, 1.0) == {"a": 5}
    sent.note("a", A, 4, 2.0)
    assert len(sent) == 2


def test_the_last_one_sent_counts() -> None:
    """Where a prompt went to two instances, the later one is found; when it expires, nothing of it is left behind."""
    sent = Speculation(ttl_s=5.0)
    sent.note("a", A, 0, 0.0)
    sent.note("b", B, 0, 1.0)
    assert sent.match(A, {}, 1.0) == {"a": 4}
    assert sent.match(B, {}, 1.0) == {"b": 4}
    assert sent.match(A[:2], {}, 1.0) == {"b": 2}
    assert sent.match(A, {}, 5.0) == {"b": 2}
    assert sent.match(A, {}, 6.0) == {}
    assert len(sent) == 0
    assert not sent._newest


def test_speculation_is_bounded() -> None:
    """A flood of prompts, or one without end, is kept up to a number of blocks."""
    sent = Speculation(capacity_blocks=1000)
    for i in range(500):
        sent.note("a", range(1000 * i, 1000 * i + 7 * (i % 200)), 0, 0.0)
        assert len(sent) <= 1000
        assert len(sent._newest) <= 1000
    sent.note("a", range(5000), 0, 0.0)
    assert sent.match(range(5000), {}, 0.0) == {"a": 1000}
