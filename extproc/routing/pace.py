"""How long an engine takes to prefill: the formula, and its constants as the engines' own events tell them. Pure.

    W(begin, end) = byte_s * ((end - begin) + (end^2 - begin^2) / (2 * depth))             seconds

The first part is what every byte costs (weights, experts), the second attention: at `depth` bytes of context a byte
costs twice as much as at the beginning. What another instance holds may come from a shared tier of memory; such a byte
costs `fetch_s`, and never more than computing it.

It knows times and lengths in bytes; it knows neither instances nor requests.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

# Before the first prefill: a model of 3 billion active parameters on an H20 (48 us a token, a token of 4 bytes; see
# docs/engine-model.md). Only the ratios matter to a choice, and `depth` differs little between models and GPUs.
BYTE_S = 12e-6
DEPTH = 34_400.0
WINDOW = 64  # samples: a few seconds of a busy pool, so that what is wrong heals soon
FEWEST = 8  # samples, before any of them counts
EVERY = 4  # samples, until constants are made anew
MIN_BYTES = 4096  # of a sample, about 1,000 tokens: in less a step's fixed time is all one sees
# A slope needs samples at different depths: the deepest third at least so much deeper than the first.
SPREAD = 0.25  # of the default depth


@dataclass(frozen=True, slots=True)
class Pace:
    """The constants of one pool: a model on its GPUs."""

    byte_s: float = BYTE_S  # seconds to compute a byte at the beginning of a prompt
    depth: float = DEPTH  # bytes of context at which a byte costs twice that
    fetch_s: float = math.inf  # seconds for a byte that another instance holds; infinite: it has to be computed

    def compute(self, begin: float, end: float) -> float:
        """Seconds to compute a prompt from byte `begin` to byte `end`; 0 where that is nothing."""
        length = end - begin
        return self.byte_s * length * (1 + (begin + end) / (2 * self.depth)) if length > 0 else 0.0

    def prefill(self, hit: float, best: float, prompt: float) -> float:
        """Seconds for what an instance lacks that holds `hit` bytes, where another one holds `best`."""
        return self.held(hit, best) + self.compute(max(hit, best), prompt)

    def held(self, hit: float, best: float) -> float:
        """Seconds for the part of that which the other one holds."""
        return min(self.compute(hit, best), self.fetch_s * (best - hit)) if best > hit else 0.0


class Sample(NamedTuple):
    """What an instance did in one stretch of prefill."""

    seconds: float
    computed: float  # bytes that nobody held
    pairs: float  # sum of (end^2 - begin^2) / 2 of these, in square bytes
    held: float = 0.0  # bytes that another instance held: fetched, or computed too
    held_pairs: float = 0.0


def stretch(begin: float, end: float) -> tuple[float, float]:
    """Bytes and square bytes of a part of a prompt."""
    return (end - begin, (end * end - begin * begin) / 2) if end > begin else (0.0, 0.0)


class Given(NamedTuple):
    """Constants set by hand, as in `Pace`; None is learnt."""

    byte_s: float | None = None
    depth: float | None = None
    fetch_s: float | None = None


ALL_LEARNT = Given()


class Learner:
    """The pace of a pool by its last samples; `given` constants are kept as they are."""

    def __init__(self, given: Given = ALL_LEARNT) -> None:
        self._given = given
        self._computed: deque[Sample] = deque(maxlen=WINDOW)
        self._held: deque[Sample] = deque(maxlen=WINDOW)
        self._fresh = 0
        self._pace = self._learnt()

    def give(self, given: Given) -> None:
        """Other constants are set by hand from now on."""
        self._given = given
        self._pace = self._learnt()

    @property
    def pace(self) -> Pace:
        """As of now."""
        return self._pace

    @property
    def samples(self) -> int:
        """How many stand behind it."""
        return len(self._computed) + len(self._held)

    def note(self, sample: Sample) -> None:
        """An instance did this."""
        if not (math.isfinite(sample.seconds) and sample.seconds > 0):
            return
        if sample.held >= MIN_BYTES:
            self._held.append(sample)
        elif sample.computed >= MIN_BYTES and not sample.held:
            self._computed.append(sample)
        else:
            return
        self._fresh += 1
        if self._fresh >= EVERY:
            self._fresh = 0
            self._pace = self._learnt()

    def _learnt(self) -> Pace:
        learnt = _learnt(self._computed, self._held, self._given.depth)
        return replace(learnt, **{name: value for name, value in self._given._asdict().items() if value is not None})


def _learnt(computed: Sequence[Sample], held: Sequence[Sample], depth: float | None) -> Pace:
    if len(computed) < FEWEST:
        return Pace()
    pace = Pace(*_line(computed, depth))
    return replace(pace, fetch_s=_fetch(pace, held)) if len(held) >= FEWEST else pace


def _line(samples: Sequence[Sample], depth: float | None) -> tuple[float, float]:
    """Seconds a byte over mean depth: Tukey's resistant line, through the medians of the outer thirds.

    Where `depth` is known, or nothing deep was seen, only the height of the line is learnt.
    """
    points = sorted((s.pairs / s.computed, s.seconds / s.computed) for s in samples)
    third = max(1, len(points) // 3)
    shallow, deep = points[:third], points[-third:]
    near, far = (median(x for x, _ in part) for part in (shallow, deep))
    low, high = (median(y for _, y in part) for part in (shallow, deep))
    if depth is None and far - near >= SPREAD * DEPTH and high > low:
        slope = (high - low) / (far - near)
        byte_s = median(y - slope * x for x, y in points)
        if byte_s > 0:
            return byte_s, byte_s / slope
    depth = depth or DEPTH
    return median(y / (1 + x / depth) for x, y in points), depth


def _fetch(pace: Pace, samples: Sequence[Sample]) -> float:
    """Seconds a byte that another instance held: what it took beyond the rest, at least nothing, at most computing it.

    A mean of values that are bounded so: where a tier has every second of them, the truth lies between both prices.
    """
    total = 0.0
    for sample in samples:
        rest = sample.seconds - _seconds(pace, sample.computed, sample.pairs)
        total += min(max(rest, 0.0), _seconds(pace, sample.held, sample.held_pairs))
    return total / sum(sample.held for sample in samples)


def _seconds(pace: Pace, length: float, pairs: float) -> float:
    return pace.byte_s * (length + pairs / pace.depth)
