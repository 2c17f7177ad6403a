"""Leaps over steps that only decode: the same times, hits and caches as step by step, in closed form."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.engine.block_keys import chain, extra_keys
from loadgen.engine.instance import Instance, Limits, Request, Step
from loadgen.engine.timing import PROFILES, Accelerator
from tests.support.driving import drive

SIZE = 4
H20 = PROFILES["30b-h20"]

profiles = st.sampled_from(sorted(PROFILES)).map(PROFILES.__getitem__)


def request(prompt: str, reply: int, number: int = 0) -> Request:
    """A request whose tokens are letters; no two numbers have equal replies."""
    tokens = [ord(letter) for letter in prompt] + [1000 * (number + 1) + place for place in range(reply)]
    keys = chain(tokens, SIZE, extra_keys((len(tokens) - 1) // SIZE))
    return Request(prompt=len(prompt), reply=reply, keys=keys)


# Gaps of milliseconds, so that arrivals meet prefills, leaps and idleness.
tasks = st.lists(st.tuples(st.floats(0.0, 0.2), st.text("ab", min_size=1, max_size=30), st.integers(1, 40)), max_size=8)


def arrivals(drawn: list[tuple[float, str, int]]) -> list[tuple[float, Request]]:
    at, made = 0.0, []
    for number, (gap, prompt, reply) in enumerate(drawn):
        at += gap
        made.append((at, request(prompt, reply, number)))
    return made


@settings(deadline=None, max_examples=200)
@given(tasks, st.integers(18, 40), st.integers(4, 40))
def test_leaps_change_nothing(drawn: list[tuple[float, str, int]], blocks: int, budget: int) -> None:
    """First tokens, ends, hits and what the cache holds at the end are those of single steps, whenever tasks arrive."""
    courses, hits, caches = [], [], []
    for leap in (False, True):
        subject = Instance[Request](H20, blocks, SIZE, Limits(batch_tokens=budget))
        submitted = arrivals(drawn)
        courses.append(drive(subject, submitted, leap=leap))
        hits.append([one.hit for _, one in submitted])
        caches.append(subject.cache.keys)
    single, leaping = courses
    assert len(single.end) == len(drawn)
    assert leaping.first == pytest.approx(single.first, rel=1e-9)
    assert leaping.end == pytest.approx(single.end, rel=1e-9)
    assert hits[1] == hits[0]
    assert caches[1] == caches[0]
    assert leaping.steps <= single.steps


def begin(subject: Instance[Request], now: float) -> Step[Request]:
    step = subject.begin(now, leap=True)
    assert step
    return step


def decoding(*requests: Request) -> tuple[Instance[Request], Step[Request]]:
    """An instance that has prefilled these at time 3, and its first leap."""
    subject = Instance[Request](H20, 64, SIZE)
    subject.waiting.extend(requests)
    prefill = begin(subject, 3.0)
    subject.finish(prefill)
    return subject, begin(subject, prefill.ends)


def test_a_leap_ends_with_the_first_that_is_done() -> None:
    """Of replies of 10 and 30 tokens, whose first tokens are there, one leap makes 9 of each, and the next 20."""
    subject, leap = decoding(request("a", 10), request("b", 30, 1))
    assert leap.count == 9
    subject.finish(leap)
    assert begin(subject, leap.ends).count == 20


@pytest.mark.parametrize("tokens", [1, 2, 7, 29])
def test_an_interrupted_leap_ends_at_the_next_token(tokens: int) -> None:
    """Just before the end of its n-th step it ends there; just after it, one step later."""
    subject, leap = decoding(request("abcdefgh", 31))
    boundary = leap.began + H20.decodes(1, 9, tokens)
    sooner, later = subject.interrupt(leap, boundary - 1e-9), subject.interrupt(leap, boundary + 1e-9)
    assert (sooner.count, later.count) == (tokens, tokens + 1)
    assert sooner.ends == pytest.approx(boundary)


def test_a_leap_is_interrupted_within_its_bounds() -> None:
    """At its beginning it still takes one step, at its end all of them."""
    subject, leap = decoding(request("a", 31))
    assert subject.interrupt(leap, leap.began).count == 1
    assert subject.interrupt(leap, leap.ends) == leap


def test_a_leap_may_be_interrupted_again() -> None:
    """The second interruption of a leap can only make it end sooner."""
    subject, leap = decoding(request("a", 31))
    once = subject.interrupt(leap, leap.began + 0.05)
    assert subject.interrupt(once, leap.began + 0.1) == once
    assert subject.interrupt(once, leap.began + 0.02).count < once.count


def test_a_step_with_a_prefill_is_no_leap() -> None:
    """While anybody prefills, each decode step is its own."""
    subject = Instance[Request](H20, 64, SIZE, Limits(batch_tokens=8))
    subject.waiting.append(request("a", 20))
    subject.finish(begin(subject, 0.0))
    subject.waiting.append(request("b" * 20, 5, 1))
    counts = []
    for _ in range(4):
        step = begin(subject, 0.0)
        counts.append(step.count)
        subject.finish(step)
    assert counts == [1, 1, 1, 4]


@given(profiles, st.integers(1, 300), st.integers(0, 500_000), st.integers(1, 200))
def test_decodes_are_their_steps_summed_up(profile: Accelerator, sequences: int, context: int, steps: int) -> None:
    """The closed form equals a loop over `seconds`, each context a token longer each step."""
    contexts = [context, *[0] * (sequences - 1)]
    loop = sum(profile.seconds([], [length + step for length in contexts]) for step in range(steps))
    assert profile.decodes(sequences, context, steps) == pytest.approx(loop, rel=1e-12)


@given(profiles, st.integers(1, 300), st.integers(0, 500_000), st.integers(1, 10_000), st.floats(-0.999, 0.0))
def test_decode_steps_is_the_inverse(
    profile: Accelerator, sequences: int, context: int, steps: int, less: float
) -> None:
    """The fewest steps that fill a time: for n steps' time, and for less by a part of the last one, n."""
    ends = profile.decodes(sequences, context, steps)
    last = ends - profile.decodes(sequences, context, steps - 1)
    assert profile.decode_steps(sequences, context, ends) == steps
    assert profile.decode_steps(sequences, context, ends + less * last) == steps


def test_at_least_one_step_is_taken() -> None:
    """No duration, or one that has passed, is a step all the same: one that has begun is always finished."""
    assert H20.decode_steps(3, 100, 0.0) == 1
    assert H20.decode_steps(3, 100, -1.0) == 1


@pytest.mark.parametrize(("threshold", "first"), [(0, [24]), (8, [8, 6])])
def test_a_long_prompt_leaves_room_in_a_step(threshold: int, first: list[int]) -> None:
    """With vLLM's --long-prefill-token-threshold a short prompt behind a long one is computed in the same step."""
    subject = Instance[Request](H20, 100, SIZE, Limits(batch_tokens=24, long_prefill=threshold))
    long, short = request("a" * 60, 1), request("b" * 6, 1, 1)
    subject.submit(long)
    subject.submit(short)
    step = subject.begin(0.0)
    assert step is not None
    assert [task.computed for task in step.scheduled] == first
