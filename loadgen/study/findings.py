"""What a study finds, as values: reuse, intervals, balance and their distributions. Knows no trace, computes nothing.

Lengths in tokens, times in seconds, shares from 0 to 1. What a trace's format does not say is None, with the reason in
`Study.unsaid`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

SOON_S = 100.0  # the paper: about 90 % of the reuse happens within it


class Spread(msgspec.Struct, frozen=True):
    """A distribution in a few points (nearest rank)."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class Reuse(msgspec.Struct, frozen=True, kw_only=True):
    """Figure 5: reuse with an infinite store. The shares are of the reused tokens and add up to 1."""

    ratio: float  # prompt tokens in blocks that an earlier prompt had / prompt tokens; named parts of blocks count
    whole: float  # the same of whole blocks alone: what an engine can reuse
    tokens: int  # reused
    within: float | None  # share whose block this session produced first
    system: float | None  # share that is system prompt of another session's making; None: not told from the rest
    other: float | None  # the rest


class Intervals(msgspec.Struct, frozen=True, kw_only=True):
    """Figure 6: from the end of the last request that used a block to the arrival of the next, each token counted.

    An end that is not recorded is taken to be the arrival, so the interval is an upper bound. Formats that give gaps
    and no durations have arrivals after nominal ends: there these are the ends.
    """

    soon: float  # share within SOON_S
    soon_requests: float  # the same, each request counted once: by the last block that it reuses
    p50: float
    p90: float
    p99: float
    curve: Sequence[tuple[float, float]]  # seconds, share within them


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """Figure 9: hottest / mean instance in tokens, a value a minute."""

    median: float
    worst: float
    minutes: Sequence[float]


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace says of its workload."""

    trace: str
    requests: int
    duration_s: float
    instances: int
    input: Spread
    output: Spread
    sessions: int | None = None
    inferred: bool = False  # whether the sessions are
    forks: int | None = None  # sessions that another session's request began
    turns: Spread | None = None  # requests of a session that is no fork
    append: Spread | None = None  # prompt tokens after the last reply, of follow-ups
    growth: Spread | None = None  # prompt tokens more than the request before, of follow-ups that grow
    reuse: Reuse | None = None
    intervals: Intervals | None = None
    triggers: Mapping[str, float] | None = None  # shares of the requests
    session_tokens: Spread | None = None  # prompt and reply
    concentration: Sequence[tuple[float, float]] | None = None  # top share of the sessions -> share of the tokens
    rate: Spread | None = None  # requests a minute / instances
    rate_least: float | None = None
    balance: Balance | None = None
    nominal: float = 0.0  # share of the requests whose duration is not recorded
    unsaid: Sequence[str] = ()
