"""Hints of what was just sent where: they bridge moments, and are bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.base.facts import Fact
from extproc.routing.pools.speculation import LONGEST, WAITING, Speculation

A = [1, 2, 3, 4]


B = [1, 2, 5, 6]


C = [7, 8, 9]

HEARD = 0.05  # when facts come

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


def test_what_the_engine_stored_is_no_guess() -> None:
    """A prefill is announced chunk by chunk: a hint bridges the rest, and counts only while the index has the start."""
    sent = Speculation()
    sent.note("a", range(10), 0, 0.0)
    sent.hear(Fact("a", stored=[3]), HEARD)
    assert len(sent) == 6
    assert sent.match(range(12), {"a": 4}, 0.1) == {"a": 10}
    assert sent.match(range(12), {"a": 3}, 0.1) == {"a": 3}, "evicted since: the rest follows nothing"
    assert sent.match(range(12), {"b": 4}, 0.1) == {"b": 4}
    sent.hear(Fact("a", stored=[9]), HEARD)
    assert len(sent) == 0
    assert sent.match(range(12), {"a": 2}, 0.2) == {"a": 2}, "stored, and evicted again within the hint's time"


def test_the_end_of_a_prompt_fills_no_block_of_the_engine() -> None:
    """An engine of large blocks stores up to its last whole one: then the prompt is prefilled, and the hint is over."""
    sent = Speculation()
    sent.note("a", range(10), 0, 0.0)
    sent.hear(Fact("a", stored=[5], span=4), HEARD)
    assert len(sent) == 0
    sent.note("a", range(10), 0, 0.0)
    sent.hear(Fact("a", stored=[1], span=4), HEARD)
    assert sent.match(range(10), {"a": 2}, 0.0) == {"a": 7}, "the last three may never be stored"


def test_what_was_lost_is_no_guess() -> None:
    """Cleared, restarted, out of reach: nothing that was sent there counts, what was sent elsewhere does."""
    sent = Speculation()
    sent.note("a", A, 0, 0.0)
    sent.note("b", C, 0, 0.0)
    sent.hear(Fact("a", lost=True), HEARD)
    assert sent.match(A, {}, 0.1) == {}
    assert sent.match(C, {}, 0.1) == {"b": 3}
    sent.note("a", A, 0, 0.2)
    assert sent.match(A, {}, 0.3) == {"a": 4}, "what is sent from then on counts again"


def test_an_engine_speaks_for_itself_alone() -> None:
    """Stored elsewhere, or another prompt: the hint stays."""
    sent = Speculation()
    sent.note("a", A, 0, 0.0)
    sent.hear(Fact("b", stored=A), HEARD)
    sent.hear(Fact("a", stored=[77]), HEARD)
    assert sent.match(A, {}, 0.1) == {"a": 4}


def test_what_was_said_before_a_decision_says_nothing_of_it() -> None:
    """A prompt that is computed anew: word of its first time, and of its loss, may come after it was sent again."""
    sent = Speculation()
    sent.note("a", A, 0, 2.0)
    sent.hear(Fact("a", stored=[4], age_s=1.5), 3.0)
    sent.hear(Fact("a", lost=True, age_s=1.5), 3.0)
    assert sent.match(A, {}, 3.0) == {"a": 4}
    sent.hear(Fact("a", stored=[4], age_s=0.5), 3.0)
    assert sent.match(A, {}, 3.0) == {}


def test_an_answer_may_be_older_than_a_word() -> None:
    """What was stored while the index answered is in neither: the hint stays for that answer, and only for that."""
    sent = Speculation()
    sent.note("a", A, 0, 0.0)
    mark = sent.mark
    sent.hear(Fact("a", stored=[4]), 0.1)
    assert sent.match(A, {}, 0.1, mark) == {"a": 4}
    assert sent.match(A, {}, 0.1, sent.mark) == {}
    assert sent.match(A, {}, 0.1, mark) == {}, "what is over stays over"


def test_what_waits_to_be_taken_in_is_bounded() -> None:
    """Where nobody asks, facts do not pile up."""
    sent = Speculation()
    for number in range(10 * WAITING):
        sent.hear(Fact("a", stored=[number]), 0.0)
    assert len(sent._waiting) <= WAITING
    sent.expire(0.0)
    assert not sent._waiting


@given(st.lists(st.tuples(st.sampled_from(["note", "stored", "lost", "wait"]), st.integers(0, 19), st.booleans())))
def test_the_books_balance(steps: list[tuple[str, int, bool]]) -> None:
    """Whatever is sent, said and forgotten: the count is that of the keys, and all of it ends with time."""
    sent, now = Speculation(capacity_blocks=50, ttl_s=5.0), 0.0
    for what, number, other in steps:
        instance = "b" if other else "a"
        if what == "note":
            sent.note(instance, [10 * (number // 10) + i for i in range(number + 1)], number // 3, now)
        elif what == "stored":
            sent.hear(Fact(instance, stored=[number], span=number % 3), now)
        elif what == "lost":
            sent.hear(Fact(instance, lost=True), now)
        else:
            now += number / 10
        assert len(sent) == sum(len(prompt.keys) for prompt in sent._prompts) <= 50
        assert sum(map(len, [sent._newest])) <= len(sent)
        hits = sent.match(range(20), {"a": number // 4}, now)
        assert all(0 <= hit <= 20 for hit in hits.values())
    sent.expire(now + 6.0)
    assert len(sent) == 0
    assert not sent._newest


def test_a_very_long_prompt_is_a_hint_of_its_beginning() -> None:
    """To note and to forget all keys of it would take milliseconds; its follow-up comes after minutes of prefill."""
    hints = Speculation()
    chain = list(range(1, 3 * LONGEST))
    hints.note("a", chain, 0, now=0.0)
    assert hints.match(chain, {}, now=1.0) == {"a": LONGEST}


def test_what_is_too_old_is_forgotten_in_pieces() -> None:
    """Each call forgets some of it; what is still there counts no more."""
    hints = Speculation()
    chains = [list(range(start, start + LONGEST)) for start in range(1, 6 * LONGEST, LONGEST)]
    for chain in chains:
        hints.note("a", chain, 0, now=0.0)
    assert hints.match(chains[-1], {}, now=100.0) == {}
    assert 0 < len(hints) < len(chains) * LONGEST
    for _ in chains:
        hints.expire(now=100.0)
    assert len(hints) == 0
