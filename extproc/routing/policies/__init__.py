"""Policies: pure functions from what is known of the instances to a choice. One file each, named like its policy.

A policy module has one function `choose(view, *, option=default, ...) -> Verdict`. Its keyword-only parameters are the
policy's options (header `x-smetric-<option with dashes>`), its docstring gives formula, source and when it loses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from extproc.base.model import Reason
from extproc.routing.pace import Pace

DEFAULT_PACE = Pace()


@dataclass(frozen=True, slots=True)
class View:
    """What a policy may look at. `hits[i]` and `loads[i]` belong to candidate i; there is at least one candidate."""

    turn: int  # assistant replies already in the request
    history: int  # bytes of carried history (est_hit)
    prompt: int  # bytes of the prompt
    hits: Sequence[int]  # bytes of the prompt in each candidate's local cache
    loads: Sequence[float]  # requests in flight (colocated) or bytes to prefill (prefill pools), before this request
    cursor: int  # the candidate after the last one that was chosen: any integer >= 0
    unprefilled: Sequence[float]  # bytes that each candidate has left to prefill for the requests in flight there
    seed: int = 0  # 64 random bits, new for each request
    shares: Sequence[float] = ()  # requests that each candidate got lately; empty: as many as all others
    unit: float = 1  # what one request like this weighs in `loads`: 1, or in prefill pools the bytes of its prompt
    waits: Sequence[float] = ()  # seconds that what is `unprefilled` takes there
    pace: Pace = DEFAULT_PACE  # how fast the pool's instances prefill


class Verdict(NamedTuple):
    """The index of the chosen candidate, and why."""

    candidate: int
    reason: Reason


# Shares that differ by less are equal: an average request weighs twice as much, once for itself and once for its bytes.
# Without it, two kinds of prompts of almost one length would each always find "their" instance a byte behind.
EQUAL = 1.0


def in_turn(tied: Iterable[int], view: View) -> int:
    """Of candidates that are equally good, one of those that got least lately, drawn by the view's seed.

    Raises ValueError where there is none.
    """
    due = list(tied)
    if len(due) > 1 and view.shares:
        least = min(view.shares[i] for i in due)
        due = [i for i in due if view.shares[i] < least + EQUAL]
    if not due:
        raise ValueError("no candidate to choose from")
    return due[view.seed % len(due)]


def lowest(scores: Sequence[float], view: View) -> int:
    """The candidate with the lowest score, ties in turn."""
    least = min(scores)
    return in_turn((i for i, score in enumerate(scores) if score == least), view)
