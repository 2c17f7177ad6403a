"""Examples that a client wrote, told from a session's history."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from extproc.requests.reply_keys import asked
from extproc.routing.pools.few_shot import CAPACITY, FewShot, Spoken

SYSTEM = ("system", "You edit files.")
EXAMPLES = [("user", "Example"), ("assistant", "An edit"), ("user", "Another"), ("assistant", "Another edit")]
Messages = Sequence[tuple[str, str]]


def spoken(messages: Messages) -> Spoken:
    return Spoken(*asked([{"role": role, "content": content} for role, content in messages], 0))


def follow_ups(first: Messages, turns: int) -> list[Messages]:
    """A session's requests: each carries the one before, its reply, and one message more."""
    requests = [list(first)]
    for turn in range(turns):
        requests.append([*requests[-1], ("assistant", f"reply {turn}"), ("user", f"turn {turn} of {first[-1]}")])
    return requests  # type: ignore[return-value]


def test_examples_are_no_history() -> None:
    """From the third session on that goes on from the same examples; what each goes on with is its own session."""
    memory = FewShot()
    firsts = [[SYSTEM, *EXAMPLES, ("user", f"question {number}")] for number in range(6)]
    assert [memory.begins(spoken(first)) for first in firsts] == [False, False, True, True, True, True]
    for first in firsts:
        assert not any(memory.begins(spoken(request)) for request in follow_ups(first, 5)[1:])


@given(st.integers(1, 8), st.integers(2, 12), st.randoms())
def test_a_sessions_history_is_one_whatever_comes_of_it(turns: int, forks: int, random: object) -> None:
    """Forks, edited last messages and repeated requests of a session whose requests were seen: none begins anew."""
    memory = FewShot()
    requests = follow_ups([SYSTEM, ("user", "start")], turns)
    assert not any(memory.begins(spoken(request)) for request in requests)
    history = requests[-1][:-1]
    for number in range(forks):
        fork = [*history, ("user", f"sub-agent {number}")]
        assert not memory.begins(spoken(fork))
        assert not memory.begins(spoken(fork))
        assert not memory.begins(spoken([*fork, ("assistant", "done"), ("user", "more")]))


def test_sessions_that_share_a_system_prompt_are_no_examples() -> None:
    """Even where nothing was seen of how they began, as after a restart: their replies are their own."""
    memory = FewShot()
    for number in range(20):
        session = follow_ups([SYSTEM, ("user", f"task {number}")], 3)[-1]
        assert not memory.begins(spoken(session))


def test_one_request_again_and_again_is_no_session_more() -> None:
    """Retries of one request are one continuation, however many."""
    memory = FewShot()
    request = [SYSTEM, *EXAMPLES, ("user", "question")]
    assert not any(memory.begins(spoken(request)) for _ in range(20))


def test_memory_is_bounded() -> None:
    """Of requests and of histories the newest are kept, and a copy remembers apart."""
    memory = FewShot()
    for number in range(CAPACITY + 100):
        memory.begins(Spoken([number], -number, 10**9 + number))
    assert len(memory._asked) == len(memory._histories) == CAPACITY
    copy = memory.copy()
    copy.begins(Spoken([], 0, 7))
    assert 7 not in memory._asked
