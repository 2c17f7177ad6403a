"""Keys of prompts and replies: equal where the content is, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.simulation.keys import Keys
from loadgen.workloads.trace import Trace, TraceRequest
from tests.support.simulation_traces import SIZE, nothing_named, request, trace


def shared(a: np.ndarray, b: np.ndarray) -> int:
    """How many leading keys two requests have in common."""
    both = min(len(a), len(b))
    differ = np.flatnonzero(a[:both] != b[:both])
    return int(differ[0]) if len(differ) else both


def follow_up(before: TraceRequest, new: int, name: str = "b", session: str = "") -> TraceRequest:
    """The next turn, whose prompt is the whole conversation so far and `new` tokens."""
    tokens = before.input + before.output + new
    return request(name, 9.0, tokens, after=before, blocks=((before.blocks[0][0], tokens // SIZE),), session=session)


@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 200), st.sampled_from([1, 2, 5]))
def test_a_follow_up_finds_prompt_and_reply(prompt: int, reply: int, new: int, every: int) -> None:
    """Every whole block of the turn before is found, but for the one with its last token, which was never computed."""
    first = request("a", 0.0, prompt, reply, blocks=((500, prompt // SIZE),))
    keys = Keys(trace(first, follow_up(first, new)), SIZE * every)
    before, after = keys.of(first), keys.of(follow_up(first, new))
    assert len(before) == (prompt + reply - 1) // (SIZE * every)
    assert shared(before, after) == len(before)


def test_what_nobody_shows_again_is_found_by_nobody() -> None:
    """Replies that no later prompt carries have keys of their own."""
    one, other = request("a", 0.0, 64, 100), request("b", 0.0, 64, 100)
    keys = Keys(trace(one, other), SIZE)
    a, b = keys.of(one), keys.of(other)
    assert not set(a.tolist()) & set(b.tolist())
    assert max(a.max(), b.max()) < keys.count


def test_a_rewritten_history_does_not_name_the_reply() -> None:
    """Where the next prompt departs within the last one, its blocks are not those of the reply."""
    first = request("a", 0.0, 10 * SIZE, 64, blocks=((500, 10),))
    broken = request("b", 9.0, 20 * SIZE, after=first, blocks=((500, 7), (900, 13)))
    keys = Keys(trace(first, broken), SIZE)
    assert shared(keys.of(first), keys.of(broken)) == 7


def test_a_compaction_does_not_name_the_reply() -> None:
    """A first prompt again, though it begins like the last one in all its blocks: what comes then is no reply."""
    first = request("a", 0.0, 10 * SIZE, 64, blocks=((500, 10),))
    compacted = replace(follow_up(first, 50), turn=0, history=0)
    keys = Keys(trace(first, compacted), SIZE)
    assert shared(keys.of(first), keys.of(compacted)) == 10


def test_a_short_prompt_is_no_reply_of_another() -> None:
    """A prompt of less than a block shares nothing with a first request that came from it."""
    first = request("a", 0.0, 5, 64, blocks=())
    compacted = replace(request("b", 9.0, 80, after=first), turn=0, history=0)
    keys = Keys(trace(first, compacted), SIZE)
    assert shared(keys.of(first), keys.of(compacted)) == 0


def test_the_session_names_a_reply_before_its_forks() -> None:
    """A fork that carries none of the reply, though it comes first, leaves the next turn its hit, and has none."""
    first = request("a", 0.0, 10 * SIZE, 10 * SIZE, blocks=((500, 10),))
    fork = request("fork", 5.0, 30 * SIZE, after=first, session="f", blocks=((500, 10), (9000, 20)))
    fork = replace(fork, turn=1, history=8 * SIZE)
    after = follow_up(first, 50)
    keys = Keys(trace(first, fork, after), SIZE)
    parent = keys.of(first)
    assert shared(parent, keys.of(after)) == 19
    assert shared(parent, keys.of(fork)) == 10


def test_a_fork_alone_names_what_it_carries() -> None:
    """Where no turn of the session goes on from a reply, a fork that carries it finds it."""
    first = request("a", 0.0, 10 * SIZE, 10 * SIZE, blocks=((500, 10),))
    fork = follow_up(first, 50, "fork", session="f")
    keys = Keys(trace(first, fork), SIZE)
    assert shared(keys.of(first), keys.of(fork)) == 19


def test_a_coarser_cache_shares_whole_blocks_alone() -> None:
    """Prompts that share 7 blocks of the trace share one of the cache's blocks of five."""
    one = request("a", 0.0, 20 * SIZE, 1, blocks=((500, 20),))
    other = request("b", 0.0, 20 * SIZE, 1, blocks=((500, 7), (900, 13)))
    keys = Keys(trace(one, other), 5 * SIZE)
    assert len(keys.of(one)) == 4
    assert shared(keys.of(one), keys.of(other)) == 1


def test_nameless_blocks_are_found_by_nobody() -> None:
    """A format without block names gives each request keys of its own, within what a cache provides for."""
    requests = [request(name, 0.0, 1000, 100) for name in "abc"]
    keys = Keys(nothing_named(requests), SIZE)
    of = [keys.of(replace(one, blocks=())) for one in requests]
    assert len({key for chain in of for key in chain.tolist()}) == sum(map(len, of))
    assert max(int(chain.max()) for chain in of) < keys.count


runs = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=4).map(tuple)


@given(st.lists(runs, min_size=1, max_size=6))
def test_names_become_keys_one_to_one(drawn: list[tuple[tuple[int, int], ...]]) -> None:
    """Whatever ranges of names overlap: equal names are equal keys, different names different ones, without gaps."""
    requests = [
        request(str(number), 0.0, SIZE * sum(count for _, count in blocks) + 1, 1, blocks=blocks)
        for number, blocks in enumerate(drawn)
    ]
    keys = Keys(trace(*requests), SIZE)
    found: dict[int, int] = {}
    for one in requests:
        names = [first + place for first, count in one.blocks for place in range(count)]
        for name, key in zip(names, keys.of(one).tolist(), strict=True):
            assert found.setdefault(name, key) == key
    assert sorted(found.values()) == list(range(len(found)))


@pytest.mark.parametrize("size", [8, 24, 40])
def test_a_block_size_that_is_no_multiple_is_refused(size: int) -> None:
    """The error names both sizes."""
    with pytest.raises(ValueError, match=f"block size {size} is no multiple of the trace's, 16 tokens"):
        Keys(Trace("made", SIZE, [request("a", 0.0, 64)]), size)
