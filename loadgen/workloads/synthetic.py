"""Agent sessions out of a profile and a seed, as a trace: forks, compactions, rewritten histories, shared prompts.

Pure: equal arguments give equal traces on every machine. Draws the sessions of all time, not only those of the window:
what began before time 0 and still goes on is there from the start, so the load is steady from the first second. Their
first request in the window then has a turn above 0 and no parent.

Blocks. Only full blocks of a prompt are named. A session's tokens have fixed positions, so block k of a session has one
name, in whichever prompt it is first full: a block that a reply fills has its name from the next prompt on. Whole
blocks of a shared system prompt have the same names in all sessions; the block in which it ends is each session's own.
A fork and a rewritten history keep the names up to where they depart, and a compaction those of the system prompt.

Time. A request nominally takes OVERHEAD_S + PREFILL_S a token that no earlier prompt of the session (or other holder of
its shared prompt) had + DECODE_S a token of the reply; the next request arrives its gap after that.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from dataclasses import dataclass, replace

from loadgen.workloads.profiles import Profile, Spread, mean_requests, mean_whole, whole
from loadgen.workloads.trace import Runs, Trace, TraceRequest, Trigger, cut

OVERHEAD_S = 0.03  # seconds of a request, whatever its length: of the order of the measured 0.027 of a cold prefill
PREFILL_S = 60e-6  # seconds a token: the 30B model on one H20 at a prompt of some thousand tokens
DECODE_S = 0.020  # seconds a token: two thirds of the paper's limit of 30 ms


def generate(profile: Profile, *, rate: float, seconds: float, seed: int, block_size: int = 64) -> Trace:
    """The requests that arrive in `seconds` seconds, `rate` a second on average over seeds.

    Sessions arrive as a Poisson process. The n-th session of a seed is the same at every rate, but for its arrival.

    Raises:
        ValueError: a rate, time or block size that is not positive, or a context that cannot hold the profile.
    """
    _check(profile, rate=rate, seconds=seconds, block_size=block_size)
    arrivals = random.Random(f"{seed}/arrivals")
    sessions = _Sessions(profile, block_size, 0.0, seconds)
    per_second = rate / mean_requests(profile)
    at = arrivals.expovariate(per_second) - profile.lookback_s
    number = 0
    while at < seconds:
        sessions.add(seed, number, at)
        at += arrivals.expovariate(per_second)
        number += 1
    return sessions.trace()


def generate_whole(profile: Profile, *, sessions: int, rate: float, seed: int, block_size: int = 64) -> Trace:
    """So many sessions with their forks, each from its first request to its last; the first begins at time 0.

    `rate` is in requests a second that sessions arriving forever would come to. Raises ValueError as `generate`.
    """
    _check(profile, rate=rate, sessions=sessions, block_size=block_size)
    arrivals = random.Random(f"{seed}/arrivals")
    drawn = _Sessions(profile, block_size, 0.0, math.inf)
    at = 0.0
    for number in range(sessions):
        drawn.add(seed, number, at)
        at += arrivals.expovariate(rate / mean_requests(profile))
    return drawn.trace()


def _check(profile: Profile, **positive: float) -> None:
    for name, value in positive.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name.replace('_', ' ')} {value:g}: expected a positive number")
    profile.check()


@dataclass(slots=True)
class _Context:
    """What an agent would send: its tokens and the names of their blocks."""

    system: int
    tokens: int  # of system prompt, messages and replies so far
    known: int  # of these, the leading ones that somebody has sent or received before
    prefix: Runs  # of blocks 0 to `own` - 1
    own: int  # the first block whose name is `base` + its position
    base: int
    replies: list[int]  # where each reply ends

    def blocks(self, full: int) -> Runs:
        """Names of the first `full` blocks."""
        if full <= self.own:
            return cut(self.prefix, 0, full)
        return (*self.prefix, (self.base + self.own, full - self.own))

    def depart(self, at: int, names: _Names) -> None:
        """From the block that holds token `at` on, the content is another."""
        full = at // names.block_size
        self.prefix, self.own, self.base = self.blocks(full), full, names.fresh()
        self.known = full * names.block_size


class _Names:
    """Gives out names in ranges as long as a context, so that a position finds its name by addition."""

    def __init__(self, profile: Profile, block_size: int) -> None:
        self.block_size = block_size
        self._step = -(-profile.context // block_size)
        self._next = 0
        self.shared = [self.fresh() for _ in profile.shared]

    def fresh(self) -> int:
        """What block 0 would be called in a range that nobody has yet."""
        first = self._next
        self._next += self._step
        return first


class _Sessions:
    """Draws sessions and keeps the requests that arrive between `start` and `end`."""

    def __init__(self, profile: Profile, block_size: int, start: float, end: float) -> None:
        self._profile = profile
        self._names = _Names(profile, block_size)
        self._start = start
        self._end = end
        self._forks = profile.forks / mean_whole(profile.turns)  # chance a turn
        self._kept: list[TraceRequest] = []

    def trace(self) -> Trace:
        """Everything kept, by arrival."""
        self._kept.sort(key=lambda request: request.arrival_s)
        return Trace(self._profile.name, self._names.block_size, self._kept)

    def add(self, seed: int, number: int, began: float) -> None:
        """Draw a session that begins at `began`, and its forks."""
        profile = self._profile
        rng = random.Random(f"{seed}/{number}")
        context = self._opening(rng.random())
        if rng.random() < profile.one_shot:
            self._walk(rng, f"s{number}", context, 1, profile.single, began)
            return
        turns = whole(profile.turns, rng)
        self._walk(rng, f"s{number}", context, turns, profile.first, began, forks=self._forks)

    def _opening(self, pick: float) -> _Context:
        """A context with nothing but a system prompt: a shared one or, for a high `pick`, one of its own."""
        names = self._names
        for (system, share), first in zip(self._profile.shared, names.shared, strict=True):
            if pick < share:
                full = system // names.block_size
                prefix = ((first, full),) if full else ()
                return _Context(system, system, full * names.block_size, prefix, full, names.fresh(), [])
            pick -= share
        return _Context(self._profile.private, self._profile.private, 0, (), 0, names.fresh(), [])

    def _walk(
        self,
        rng: random.Random,
        session: str,
        context: _Context,
        turns: int,
        opening: Spread,
        arrival: float,
        *,
        parent: str | None = None,
        gap: float | None = None,
        forks: float = 0.0,
    ) -> None:
        """One session's requests, the first with a text out of `opening`, forking at a chance of `forks` a turn.

        `context` is used up.
        """
        profile = self._profile
        trigger = Trigger.AGENT if context.replies else Trigger.USER
        for index in range(turns):
            if arrival >= self._end:
                return
            text = whole(profile.append if index else opening, rng)
            output = whole(profile.output, rng)
            if index and (context.tokens + text + output > profile.context or rng.random() < profile.reset):
                trigger = Trigger.COMPACTION
                context.depart(context.system, self._names)
                context.tokens = context.system + profile.summary
                context.replies.clear()
            elif index and rng.random() < profile.broken:
                context.depart(rng.randint(context.system, context.tokens), self._names)
            prompt = min(context.tokens + text, profile.context - output)
            duration = OVERHEAD_S + PREFILL_S * (prompt - context.known) + DECODE_S * output
            name = f"{session}/{index}"
            if arrival >= self._start:
                self._kept.append(
                    TraceRequest(
                        id=name,
                        session=session,
                        turn=len(context.replies),
                        arrival_s=arrival,
                        input=prompt,
                        output=output,
                        blocks=context.blocks(prompt // self._names.block_size),
                        parent=parent,
                        trigger=trigger,
                        gap_s=None if parent is None else gap,
                        duration_s=duration,
                        system=context.system,
                        tools=min(profile.tools, context.system),
                        history=context.replies[-1] if context.replies else 0,
                    )
                )
                parent = name
            context.tokens = context.known = prompt + output
            context.replies.append(context.tokens)
            ended = arrival + duration
            if forks and rng.random() < forks:
                self._fork(rng, f"{session}.{index}", context, parent, ended)
            user = rng.random() < profile.user
            trigger = Trigger.USER if user else Trigger.AGENT
            gap = (profile.user_gap if user else profile.agent_gap).draw(rng)
            arrival = ended + gap

    def _fork(self, rng: random.Random, session: str, context: _Context, parent: str | None, ended: float) -> None:
        """Children that go on from a part of the context, one reply at least. They leave their parent's draws alone."""
        profile = self._profile
        seed = rng.random()
        for number in range(1, rng.randint(1, profile.children) + 1):
            own = random.Random(f"{seed}/{number}")
            kept = max(context.replies[0], int(own.uniform(profile.inherited, 1.0) * context.tokens))
            child = replace(context, tokens=kept, replies=context.replies[: bisect_right(context.replies, kept)])
            child.depart(kept, self._names)
            gap = profile.agent_gap.draw(own)
            turns = whole(profile.child_turns, own)
            self._walk(own, f"{session}.{number}", child, turns, profile.append, ended + gap, parent=parent, gap=gap)
