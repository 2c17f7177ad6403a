"""The instance: its schedule, its cache, and an event stream that tells the truth about the cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.engine.block_keys import chain, extra_keys
from loadgen.engine.instance import Cleared, Event, Instance, Limits, Removed, Request, Step, Stored
from loadgen.engine.timing import PROFILES

SIZE = 4
DEMO = PROFILES["demo"]


def request(prompt: str, reply: int = 1) -> Request:
    """A request whose tokens are letters; the reply is made of capitals."""
    tokens = [ord(letter) for letter in prompt] + [65 + place for place in range(reply)]
    blocks = (len(tokens) - 1) // SIZE
    return Request(prompt=len(prompt), reply=reply, keys=chain(tokens, SIZE, extra_keys(blocks)))


def instance(blocks: int = 64, **limits: int) -> Instance[Request]:
    return Instance(DEMO, blocks, SIZE, Limits(**limits))


def run(subject: Instance[Request], *requests: Request) -> list[Event[Request]]:
    """Submit, step until idle, and return all events."""
    for one in requests:
        subject.submit(one)
    events: list[Event[Request]] = []
    while step := subject.begin(0.0):
        subject.finish(step)
        events += step.events
    return events


def mirror(copies: Counter[object], events: Iterable[Event[Request]]) -> None:
    """What a counted index makes of the events."""
    for event in events:
        match event:
            case Stored():
                copies.update(event.keys)
            case Removed(key):
                copies[key] -= 1
                if not copies[key]:
                    del copies[key]
            case Cleared():
                copies.clear()


def begin(subject: Instance[Request]) -> Step[Request]:
    step = subject.begin(0.0)
    assert step
    return step


def test_prompts_and_replies_are_cached() -> None:
    """A follow-up hits its whole history up to the last full block: prompt, reply, but not the last sampled token."""
    subject = instance()
    run(subject, request("a" * 10, reply=6))
    follow_up = request("a" * 10 + "ABCDEF" + "bbb")
    run(subject, follow_up)
    assert follow_up.hit == 12  # of 16 known tokens, 15 were computed


def test_the_last_block_of_a_prompt_is_always_computed() -> None:
    """A prompt of whole blocks that is cached entirely recomputes its last block, and stores it once more."""
    subject = instance()
    run(subject, request("a" * 8))
    again = request("a" * 8)
    events = run(subject, again)
    assert again.hit == 4
    assert events == [Stored(again, first=1, count=1)]
    assert subject.cache.keys[again.keys[1]] == 2


def test_long_prompts_are_prefilled_in_chunks() -> None:
    """A prompt beyond the token budget takes several steps, each with one Stored that names the block before it."""
    subject = instance(batch_tokens=8)
    one = request("a" * 20)
    subject.submit(one)
    steps = []
    while step := subject.begin(0.0):
        steps.append(step)
        subject.finish(step)
    assert [step.events for step in steps] == [
        [Stored(one, 0, 2)],
        [Stored(one, 2, 2)],
        [Stored(one, 4, 1)],
    ]
    events = [event for step in steps for event in step.events if isinstance(event, Stored)]
    assert [event.parent for event in events] == [None, one.keys[1], one.keys[3]]


def test_decodes_come_before_prefills() -> None:
    """A long prefill never holds up a request that is decoding: both advance in one step."""
    subject = instance(batch_tokens=8)
    decoding, prefilling = request("a", reply=9), request("b" * 30)
    subject.submit(decoding)
    subject.finish(begin(subject))
    subject.submit(prefilling)
    for expected in (2, 3, 4):
        step = begin(subject)
        assert step.scheduled == [decoding, prefilling]
        subject.finish(step)
        assert decoding.sampled == expected
    assert prefilling.computed == 21


def test_requests_of_one_step_share_blocks() -> None:
    """A request that is admitted in the same step as another with the same prefix hits it already."""
    subject = instance()
    first, second = request("a" * 10), request("a" * 10)
    run(subject, first, second)
    assert (first.hit, second.hit) == (0, 8)


def test_what_two_requests_compute_at_once_is_stored_twice() -> None:
    """Blocks that two requests fill side by side are two copies, each announced and each evicted on its own."""
    subject = instance(blocks=8)
    twins = request("a" * 6, reply=4), request("a" * 6, reply=4)
    events = run(subject, *twins)
    key = twins[0].keys[1]
    assert sum(key in event.keys for event in events if isinstance(event, Stored)) == 2
    events = run(subject, request("b" * 31))
    assert events.count(Removed(key)) == 2


def test_evictions_are_told_before_what_needed_the_room() -> None:
    """Within a step, every Removed stands before the Stored that took its place, in the order of eviction."""
    subject = instance(blocks=4)
    old, new = request("a" * 13), request("b" * 9)
    run(subject, old)
    events = run(subject, new)
    assert events == [Removed(old.keys[2]), Removed(old.keys[1]), Stored(new, 0, 2)]


def test_a_reset_is_published_by_the_next_step() -> None:
    """Clearing the cache says nothing by itself; the next step tells of it, once for each call, before all else."""
    subject = instance()
    run(subject, request("a" * 8))
    assert subject.clear()
    assert subject.clear()
    after = request("a" * 9)
    assert run(subject, after) == [Cleared(), Cleared(), Stored(after, 0, 2)]
    assert after.hit == 0


def test_a_reset_is_refused_while_requests_run() -> None:
    """As in vLLM, the cache of a busy instance is not cleared."""
    subject = instance()
    subject.submit(request("a" * 8))
    begin(subject)
    assert not subject.clear()


def test_requests_wait_in_order_for_room() -> None:
    """Who does not fit beside those who run waits, and nobody overtakes him; nothing is preempted."""
    subject = instance(blocks=4)
    first, large, small = request("a" * 7, reply=2), request("b" * 12, reply=2), request("c", reply=1)
    for one in (first, large, small):
        subject.submit(one)
    step = begin(subject)
    assert step.scheduled == [first]
    assert list(subject.waiting) == [large, small]
    subject.finish(step)
    run(subject)
    assert [one.sampled for one in (first, large, small)] == [2, 2, 1]


def test_at_most_so_many_requests_run() -> None:
    """`sequences` limits the batch."""
    subject = instance(sequences=2)
    for letter in "abc":
        subject.submit(request(letter, reply=3))
    assert len(begin(subject).scheduled) == 2


def test_a_request_larger_than_the_cache_is_refused() -> None:
    """What could never run is refused at once instead of blocking the queue for ever."""
    with pytest.raises(ValueError, match="do not fit"):
        instance(blocks=4).submit(request("a" * 16, reply=2))


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_an_abort_frees_everything(steps: int) -> None:
    """Aborted in the queue, in prefill or while decoding: a request that needs every block can run after it."""
    subject = instance(blocks=4, batch_tokens=8)
    one = request("a" * 12, reply=5)
    subject.submit(one)
    step = None
    for _ in range(steps):
        if step:
            subject.finish(step)
        step = begin(subject)
    subject.abort(one)
    subject.abort(one)
    if step:
        assert subject.finish(step) == []
    assert subject.begin(0.0) is None
    assert subject.usage == 0
    whole = request("b" * 12, reply=5)
    run(subject, whole)
    assert whole.sampled == 5


prompts = st.text("ab", min_size=1, max_size=24)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), prompts, st.integers(1, 9)),
        st.tuples(st.just("step"), st.just(""), st.integers(1, 6)),
        st.tuples(st.just("abort"), st.just(""), st.integers(0, 20)),
        st.tuples(st.just("clear"), st.just(""), st.just(0)),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(actions, st.integers(8, 20), st.integers(4, 16))
def test_events_tell_the_truth(script: list[tuple[str, str, int]], blocks: int, budget: int) -> None:
    """Whatever happens: a counted index fed by the events equals the cache once all is published, every request that
    is not aborted gets its whole reply, and every block is free in the end."""
    subject = instance(blocks, batch_tokens=budget)
    submitted: list[Request] = []
    aborted: set[Request] = set()
    copies: Counter[object] = Counter()
    for action, prompt, number in script:
        if action == "submit":
            submitted.append(request(prompt, number))
            subject.submit(submitted[-1])
        elif action == "abort" and submitted:
            subject.abort(submitted[number % len(submitted)])
            aborted.add(submitted[number % len(submitted)])
        elif action == "clear":
            subject.clear()
        for _ in range(number if action == "step" else 0):
            if step := subject.begin(0.0):
                mirror(copies, step.events)
                subject.finish(step)
    submitted.append(request("z"))
    mirror(copies, run(subject, submitted[-1]))
    assert copies == subject.cache.keys
    assert all(one.sampled == one.reply for one in submitted if one not in aborted)
    assert subject.usage == 0
    assert not subject.running
    assert not subject.waiting
