"""What kinds of sessions there are: distributions of lengths and times, one table a profile, each with its source.

Knows no randomness of its own and draws no sessions: `synthetic.py` does.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from statistics import NormalDist


@dataclass(frozen=True, slots=True)
class Spread:
    """A mixture of lognormal distributions, cut off at both ends. The unit is that of its use."""

    parts: tuple[tuple[float, float, float], ...]  # weight, median, sigma of the logarithm
    most: float = math.inf
    least: float = 0.0

    def draw(self, rng: random.Random) -> float:
        """One value. Takes the same number of draws from `rng` whatever comes out."""
        choice = rng.random()
        for weight, median, sigma in self.parts:  # noqa: B007 - the last part takes what rounding leaves
            choice -= weight
            if choice < 0:
                break
        return min(self.most, max(self.least, median * math.exp(rng.gauss(0.0, sigma))))

    def above(self, value: float) -> float:
        """The probability that an uncut draw exceeds `value`."""
        return sum(
            weight * (1 - NormalDist(math.log(median), sigma).cdf(math.log(value)))
            for weight, median, sigma in self.parts
        )


def lognormal(median: float, sigma: float, most: float = math.inf, least: float = 0.0) -> Spread:
    """One lognormal distribution; its mean, uncut, is median * exp(sigma^2 / 2)."""
    return Spread(((1.0, median, sigma),), most, least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What sessions of one kind do. Lengths in tokens, times in seconds, shares from 0 to 1."""

    name: str
    about: str
    one_shot: float  # share of sessions with a single request
    turns: Spread  # requests of the other sessions
    shared: tuple[tuple[int, float], ...]  # system prompts that sessions share: length, share of the sessions
    private: int  # system prompt of all other sessions, each with its own
    single: Spread  # what the user of a one-shot session says
    first: Spread  # what the user of another session says first
    append: Spread  # what each later turn brings: a tool's output, a user's words
    output: Spread  # a reply
    user: float  # share of the later turns that a user triggers, not a tool
    agent_gap: Spread  # from a reply to the next request, where a tool triggers it
    user_gap: Spread  # the same for a user
    context: int  # prompt and reply; a longer session is compacted
    summary: int  # what a compaction keeps beside the system prompt
    reset: float  # chance a turn of a compaction long before the context is full
    broken: float  # chance a turn that the history is rewritten from some point on
    forking: float  # share of the longer sessions that fork once
    children: int  # of a fork, at most, evenly from 1
    inherited: float  # share of the parent's context that a child carries at least, evenly to 1
    child_turns: Spread

    def check(self) -> None:
        """Raises ValueError where the context cannot hold what it must."""
        system = max([self.private, *(length for length, _ in self.shared)])
        needed = system + self.summary + self.output.most + 1
        if not system < self.context:
            raise ValueError(
                f"a context of {self.context} tokens cannot hold the system prompt of {system} tokens "
                f"that profile {self.name} has"
            )
        if needed > self.context:
            raise ValueError(
                f"a context of {self.context} tokens cannot hold system prompt, summary and the longest reply "
                f"of profile {self.name}: {needed:.0f} tokens"
            )


def whole(spread: Spread, rng: random.Random) -> int:
    """A count of at least 1."""
    return max(1, round(spread.draw(rng)))


def mean_whole(spread: Spread) -> float:
    """The mean of `whole`, exactly: the sum over k of the probability of at least k. `most` must be finite."""
    return 1.0 + sum(spread.above(count - 0.5) for count in range(2, int(spread.most) + 1))


def mean_requests(profile: Profile) -> float:
    """Requests of a session and of its forks, on average."""
    forks = profile.forking * (1 + profile.children) / 2 * mean_whole(profile.child_turns)
    return profile.one_shot + (1 - profile.one_shot) * (mean_whole(profile.turns) + forks)


# The "Synthetic agents: parameters that reach the paper's statistics".
PAPER_TRACE_1 = Profile(
    name="paper-trace-1",
    about="agents as in trace 1 of the SMetric paper",
    one_shot=0.30,
    turns=lognormal(8, 0.9, most=400),
    shared=((14_500, 0.32), (9_000, 0.18), (5_000, 0.10)),
    private=9_000,
    single=lognormal(6_000, 1.2, most=100_000),
    first=lognormal(2_500, 1.2, most=100_000),
    append=lognormal(2_600, 1.3, most=40_000),
    output=Spread(((0.8, 110, 0.95), (0.2, 900, 1.05)), most=8_192, least=1),
    user=0.12,
    agent_gap=Spread(((0.46, 0.8, 0.7), (0.36, 4.0, 1.1), (0.18, 45.0, 1.6))),
    user_gap=lognormal(120.0, 1.6),
    context=131_072,
    summary=6_000,
    reset=0.0,
    broken=0.01,
    forking=0.4,
    children=4,
    inherited=0.6,
    child_turns=lognormal(3, 0.9, most=40),
)

PROFILES = {profile.name: profile for profile in (PAPER_TRACE_1,)}
