"""Prefills under way in a pool, and what the engines' own events say of them: how far each is, how long each took.

An engine says of every chunk that its blocks are stored as soon as it is computed, and of a prompt's last block a
moment before the first token (`base/facts.py`). So a request's bytes to prefill fall chunk by chunk, and end with the
prefill. What nobody speaks of ends with the request: that is its ticket's business (`loads.py`).

It owns who is prefilling where, and the pool's pace; it refuses to know how events are heard and how one chooses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from extproc.base.facts import Fact
from extproc.routing.pace import Learner, Pace, Sample, stretch
from extproc.routing.pools.loads import Ticket

RECENT = 16  # prefills of an instance that its usual time is the median of


class Ended(NamedTuple):
    """A prompt's last block was stored."""

    instance: str
    seconds: float  # since the decision


class Prompt(NamedTuple):
    """What is prefilled. Lengths in bytes."""

    chain: Sequence[int]  # its keys on the instance that prefills it
    block_bytes: int
    length: int
    hit: int  # of it, what the instance holds
    best: int  # and what some instance holds


class Prefill:
    """One request's prefill on an instance; its ticket tells it where the request is, and that it is over."""

    __slots__ = ("_at", "_bytes", "_keys", "_places", "_prefills", "_prompt", "instance", "since", "ticket")

    def __init__(self, prefills: Prefills, instance: str, prompt: Prompt, ticket: Ticket, now: float) -> None:
        self.instance = instance
        self.since = now
        self.ticket = ticket
        self._prefills = prefills
        self._prompt = prompt
        self._at = prompt.hit // prompt.block_bytes  # leading blocks that are stored
        self._bytes = prompt.hit
        self._keys = prompt.chain[self._at :]
        self._places: Mapping[int, int] | None = None  # of each key: how many blocks are stored when it is

    def place(self, key: int) -> int:
        """Leading blocks of the prompt that are stored when `key` is; 0 where it is none of those that were missing."""
        if self._places is None:  # when the engine first speaks, and not at the decision
            first = len(self._prompt.chain) - len(self._keys) + 1
            self._places = {key: place for place, key in enumerate(self._keys, first)}
        return self._places.get(key, 0)

    def brief(self, span: int) -> bool:
        """Whether so little is missing that nothing may ever be said of it."""
        return len(self._keys) <= span

    def reach(self, place: int, span: int, pace: Pace) -> tuple[float, float] | None:
        """`place` blocks are stored: the part of the prompt, in bytes, that was done by it; None where that is old.

        Where less than a block of the engine is missing, all is done.
        """
        if place <= self._at:
            return None
        begin, self._at = self._bytes, place
        over = len(self._prompt.chain) - place <= span
        self._bytes = self._prompt.length if over else place * self._prompt.block_bytes
        left = self._prompt.length - self._bytes
        self.ticket.lower(left, pace.prefill(self._bytes, self._prompt.best, self._prompt.length))
        return begin, self._bytes

    @property
    def done(self) -> bool:
        return self._bytes >= self._prompt.length

    def sample(self, seconds: float, begin: float, end: float) -> Sample:
        """What was done between two places of the prompt in so many seconds."""
        border = min(max(begin, self._prompt.best), end)
        held, held_pairs = stretch(begin, border)
        computed, pairs = stretch(border, end)
        return Sample(seconds, computed, pairs, held, held_pairs)

    def moved(self, instance: str) -> None:
        """Another instance prefills it."""
        self._prefills.leave(self)
        self.instance = instance
        self._prefills.enter(self)

    def over(self) -> None:
        """The request is over."""
        self._prefills.leave(self)


class Prefills:
    """The prefills under way of one pool."""

    def __init__(self, learner: Learner | None = None) -> None:
        self.learner = learner or Learner()
        self._under_way: dict[str, dict[Prefill, None]] = {}  # by instance, in the order of their decisions
        self._spans: dict[str, int] = {}  # of instances whose blocks span more than a prompt block
        self._said: dict[str, float] = {}  # when an instance spoke last
        self._times: dict[str, deque[float]] = {}  # of the last prefills

    def __len__(self) -> int:
        return sum(map(len, self._under_way.values()))

    @property
    def pace(self) -> Pace:
        """How fast the pool's instances are, as of now."""
        return self.learner.pace

    def usual_s(self, instance: str) -> float | None:
        """The median time of the instance's last prefills, from decision to last block; None before the first."""
        times = self._times.get(instance)
        return median(times) if times else None

    def begin(self, instance: str, prompt: Prompt, ticket: Ticket, now: float) -> None:
        """A prompt was sent to an instance whose events are followed; `ticket` holds its load."""
        prefill = Prefill(self, instance, prompt, ticket, now)
        if prefill.brief(self._spans.get(instance, 1)):
            ticket.brief()
        else:
            self.enter(prefill)
            ticket.follow(prefill)

    def hear(self, fact: Fact, now: float) -> Sequence[Ended]:
        """An engine spoke. The prefills that ended by it."""
        if not fact.stored:
            return ()
        said = now - fact.age_s
        if fact.span > 1:
            self._spans[fact.instance] = fact.span
        before = self._said.get(fact.instance, 0.0)
        self._said[fact.instance] = max(before, said)
        ended: list[Ended] = []
        parts: dict[int, Sample] = {}  # by the key that told of it: what several prompts share is computed once
        for prefill in list(self._under_way.get(fact.instance, ())):
            place, key = max((prefill.place(key), key) for key in fact.stored)
            part = prefill.reach(place, fact.span, self.pace)
            if part is None:
                continue
            parts.setdefault(key, prefill.sample(said - max(before, prefill.since), *part))
            if prefill.done:
                self.leave(prefill)
                ended += self._ended(prefill, said - prefill.since)
        if parts:
            self.learner.note(_joined(parts.values()))
        return ended

    def _ended(self, prefill: Prefill, seconds: float) -> Sequence[Ended]:
        if seconds <= 0:  # said of another request with the same prompt, before this one was sent
            return ()
        self._times.setdefault(prefill.instance, deque(maxlen=RECENT)).append(seconds)
        return [Ended(prefill.instance, seconds)]

    def keep(self, instances: Collection[str]) -> None:
        """These are all there are; what is known of others is forgotten."""
        for of_instances in (self._spans, self._said, self._times):
            for gone in [name for name in of_instances if name not in instances]:
                del of_instances[gone]

    def enter(self, prefill: Prefill) -> None:
        self._under_way.setdefault(prefill.instance, {})[prefill] = None

    def leave(self, prefill: Prefill) -> None:
        there = self._under_way.get(prefill.instance, {})
        there.pop(prefill, None)
        if not there:
            self._under_way.pop(prefill.instance, None)


def _joined(parts: Collection[Sample]) -> Sample:
    """What an instance did in one stretch for several prompts."""
    seconds = max(part.seconds for part in parts)
    return Sample(seconds, *(sum(amounts) for amounts in zip(*(part[1:] for part in parts), strict=True)))
