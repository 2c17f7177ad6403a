"""What kinds of sessions there are: distributions of lengths and times, one table a profile, each with its source.

Knows no randomness of its own and draws no sessions: `synthetic.py` does.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
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


def fixed(value: float) -> Spread:
    """Always the same value."""
    return lognormal(value, 1e-9, most=value, least=value)


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
    forks: float  # of a longer session on average, evenly over its requests
    children: int  # of a fork, at most, evenly from 1
    inherited: float  # share of the parent's context that a child carries at least, evenly to 1
    child_turns: Spread
    tools: int = 0  # of the system prompt, the tokens that define tools
    lookback_s: float  # about 1 % of the requests come later than this after their session began

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
    forks = profile.forks * (1 + profile.children) / 2 * mean_whole(profile.child_turns)
    return profile.one_shot + (1 - profile.one_shot) * (mean_whole(profile.turns) + forks)


# A fit to the statistics that the paper gives of its first trace (docs/workloads.md), at first on sessions that all
# began within 45 minutes. In the steady state, drawn here, sessions are older. So three values were changed: sigma of
# turns (was 0.9) and median of append (was 2,600), for prompts as short as those, and the slow tools' gap (was 45 s),
# for 90 % rather than 93 % of the reuse within 100 s. Forks are spread over requests, so long sessions fork more: the
# paper's reuse of other sessions.
PAPER_TRACE_1 = Profile(
    name="paper-trace-1",
    about="a coding-agent product's users, as in trace 1 of the SMetric paper",
    one_shot=0.30,
    turns=lognormal(8, 0.8, most=400),
    shared=((14_500, 0.32), (9_000, 0.18), (5_000, 0.10)),
    private=9_000,
    single=lognormal(6_000, 1.2, most=100_000),
    first=lognormal(2_500, 1.2, most=100_000),
    append=lognormal(2_000, 1.3, most=40_000),
    output=Spread(((0.8, 110, 0.95), (0.2, 900, 1.05)), most=8_192, least=1),
    user=0.12,
    agent_gap=Spread(((0.46, 0.8, 0.7), (0.36, 4.0, 1.1), (0.18, 70.0, 1.6))),
    user_gap=lognormal(120.0, 1.6),
    context=128_000,
    summary=6_000,
    reset=0.0,
    broken=0.01,
    forks=0.4,
    children=4,
    inherited=0.6,
    child_turns=lognormal(3, 0.9, most=40),
    lookback_s=3 * 3600.0,
)

# The paper's second trace has no parameters of its own anywhere: the first one's, with as much more of shared prompts
# as brings their share of the reuse from 18 % to the published 20 %.
BAILIAN_CODER = replace(
    PAPER_TRACE_1,
    name="bailian-coder",
    about="the same product's other users, as in trace 2 of the paper: more of the reuse is system prompt",
    shared=((14_500, 0.38), (9_000, 0.21), (5_000, 0.12)),
)

# Statistics of 710 recorded sessions (github.com/callanjfox/kv-cache-tester; docs/workloads.md): medians and 90th
# percentiles give median and sigma of turns, output, append (its mean) and gaps. Shared prompts: lengths of tools and
# system prompt that at least 7 of the 500 sessions that were at hand have in common. First texts, what a compaction
# keeps, and the chances of one and of a rewritten history: fitted to the lengths of prompts, 0.7 % context resets and
# reuse of 0.963. The context is that of Qwen3-Coder: sessions with a million tokens of it are left out. Subagents are
# not: they share nothing with their parents there.
CLAUDE_CODE = Profile(
    name="claude-code",
    about="long sessions of Claude Code, as recorded by kv-cache-tester",
    one_shot=0.0,
    turns=lognormal(45, 0.965, most=451),
    shared=(
        (11_988, 0.032),
        (15_771, 0.024),
        (13_174, 0.022),
        (12_573, 0.020),
        (14_738, 0.018),
        (15_535, 0.016),
        (14_655, 0.014),
        (13_165, 0.014),
        (12_946, 0.014),
        (10_647, 0.014),
        (16_799, 0.014),
        (15_902, 0.014),
        (15_418, 0.014),
    ),
    private=15_000,
    single=lognormal(9_000, 1.5, most=150_000),
    first=lognormal(9_000, 1.5, most=150_000),
    append=lognormal(653, 1.413, most=60_000),
    output=lognormal(216, 1.112, most=16_384, least=1),
    user=0.13,
    agent_gap=lognormal(9.0, 1.644),
    user_gap=lognormal(127.0, 1.6),
    context=262_144,
    summary=40_000,
    reset=0.003,
    broken=0.02,
    forks=0.0,
    children=1,
    inherited=1.0,
    child_turns=lognormal(3, 0.9, most=40),
    lookback_s=12 * 3600.0,
)

# The paper: chat reuses 54 to 62 % of its prompt tokens, after "KVCache Cache in the Wild" (ATC '25). Lengths and turns
# are such that this comes out; there is no other source for them.
CHAT = Profile(
    name="chat",
    about="people who chat: short prompts, few turns, all of them a user's",
    one_shot=0.60,
    turns=lognormal(3, 0.6, most=60),
    shared=((300, 0.40), (800, 0.20)),
    private=20,
    single=lognormal(600, 1.3, most=16_000),
    first=lognormal(600, 1.3, most=16_000),
    append=lognormal(120, 1.2, most=8_000),
    output=lognormal(300, 0.8, most=4_096, least=1),
    user=1.0,
    agent_gap=lognormal(1.0, 1.0),
    user_gap=lognormal(60.0, 1.2),
    context=32_768,
    summary=1_000,
    reset=0.0,
    broken=0.0,
    forks=0.0,
    children=1,
    inherited=1.0,
    child_turns=lognormal(1, 0.5, most=10),
    lookback_s=1 * 3600.0,
)

# What `make run` shows: as many tokens as a minute on a laptop allows, all sessions with one system prompt, and tools
# that replies call. No source: the prompt is a coding agent's, the rest is small.
DEMO = Profile(
    name="demo",
    about="small coding agents that share one system prompt and call tools, for a minute on simulated engines",
    one_shot=0.0,
    turns=fixed(6),
    shared=((14_300, 1.0),),
    private=14_300,
    single=lognormal(3_000, 0.25, most=4_500, least=1_500),
    first=lognormal(3_000, 0.25, most=4_500, least=1_500),
    append=lognormal(3_000, 0.25, most=4_500, least=1_500),
    output=fixed(64),
    user=0.0,
    agent_gap=lognormal(0.7, 0.8, most=4.0),
    user_gap=lognormal(0.7, 0.8, most=4.0),
    context=128_000,
    summary=1_000,
    reset=0.0,
    broken=0.0,
    forks=0.0,
    children=1,
    inherited=1.0,
    child_turns=fixed(1),
    tools=1_200,
    lookback_s=120.0,
)

PROFILES = {profile.name: profile for profile in (PAPER_TRACE_1, CLAUDE_CODE, BAILIAN_CODER, CHAT, DEMO)}
