"""Policies: pure functions from what is known of the instances to a choice. One file each, named like its policy.

A policy module has one function `choose(view, *, option=default, ...) -> Verdict`. Its keyword-only parameters are the
policy's options (header `x-smetric-<option with dashes>`), its docstring gives formula, source and when it loses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from extproc.base.model import Reason


@dataclass(frozen=True, slots=True)
class View:
    """What a policy may look at. `hits[i]` and `loads[i]` belong to candidate i; there is at least one candidate."""

    turn: int  # assistant replies already in the request
    history: int  # bytes of carried history (est_hit)
    prompt: int  # bytes of the prompt
    hits: Sequence[int]  # bytes of the prompt in each candidate's local cache
    loads: Sequence[float]  # requests in flight (colocated) or bytes to prefill (prefill pools), before this request
    cursor: int  # where the next tie of the round robin goes: any integer >= 0
    unprefilled: Sequence[float]  # bytes that each candidate had to prefill for the requests in flight there
    seed: int = 0  # 64 random bits, new for each request
    unit: float = 1  # what one request like this weighs in `loads`: 1, or in prefill pools the bytes of its prompt


class Verdict(NamedTuple):
    """The index of the chosen candidate, and why."""

    candidate: int
    reason: Reason


def in_turn(tied: Iterable[int], cursor: int, count: int) -> int:
    """The first of the tied candidates (ascending indices below `count`) at or after the cursor, cyclically."""
    first: int | None = None
    start = cursor % count
    for candidate in tied:
        if candidate >= start:
            return candidate
        if first is None:
            first = candidate
    if first is None:
        raise ValueError("no candidate to choose from")
    return first


def lowest(scores: Sequence[float], cursor: int) -> int:
    """The candidate with the lowest score, ties round robin."""
    least = min(scores)
    return in_turn((i for i, score in enumerate(scores) if score == least), cursor, len(scores))
