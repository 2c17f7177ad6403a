"""One target and so many inputs: what was found, and how long it took. Apart from the command, for processes."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.fuzz.mutate import inputs
from bench.fuzz.targets import TARGETS

CORPUS = Path(__file__).parents[2] / "tests" / "fuzz" / "corpus"
KEPT = 20  # findings of one target: more say nothing new


@dataclass(slots=True)
class Tried:
    """What one process did in one target. `found` maps a finding's words to its input."""

    target: str
    inputs: int
    seconds: float
    slowest_s: float
    found: dict[str, bytes] = field(default_factory=dict)


def corpus(target: str) -> Sequence[bytes]:
    """The inputs to begin with."""
    return [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]


def fuzz(target: str, count: int, seed: int) -> Tried:
    """Try so many inputs, the corpus first."""
    chosen, known = TARGETS[target], corpus(target)
    attempt = chosen.make()
    tried = Tried(target, count, 0.0, 0.0)
    made = inputs(known, seed)
    began = time.monotonic()
    for number in range(count):
        data = known[number] if number < len(known) else next(made)
        before = time.thread_time()
        try:
            attempt(data)
        except Exception as error:  # which is what is looked for
            _note(tried, _words(error), data)
        took = time.thread_time() - before
        tried.slowest_s = max(tried.slowest_s, took)
        if took > chosen.slow_s:
            _note(tried, f"slow: {took:.2f} s of CPU", data)
    tried.seconds = time.monotonic() - began
    return tried


def _note(tried: Tried, words: str, data: bytes) -> None:
    if words not in tried.found and len(tried.found) < KEPT:
        tried.found[words] = data


def _words(error: Exception) -> str:
    """What tells one fault from another: the error, and where it was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"


def work(job: tuple[str, int, int]) -> Tried:
    logging.disable(logging.CRITICAL)  # parsers say much of what they refuse
    return fuzz(*job)
