"""Means over seeds and how far to trust them: 95 % confidence intervals by Student's t. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom.
_T95 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)


PAIRS = 3  # values that an interval needs: the spread of two is known to a factor of twelve


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and half the width of its 95 % confidence interval: nan for a single value, which tells of no spread."""

    mean: float
    half: float
    n: int

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half

    @property
    def clear(self) -> bool:
        """Whether zero lies outside: for a difference, whether it is more than noise."""
        return self.low > 0 or self.high < 0

    @property
    def noise(self) -> bool:
        """Whether a difference says nothing: zero is within, or fewer values than PAIRS, whose interval is a guess."""
        return self.n > 0 and (self.n < PAIRS or not self.clear)


def mean_ci(values: Iterable[float]) -> Interval:
    """The mean of values (nan is left out) with its interval; nan of none."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return Interval(math.nan, math.nan, 0)
    half = student_t(len(known) - 1) * stdev(known) / math.sqrt(len(known)) if len(known) > 1 else math.nan
    return Interval(fmean(known), half, len(known))


def paired(a: Sequence[float], b: Sequence[float]) -> Interval:
    """How much more `a` is than `b`, relative to `b`: the mean over pairs (the same seeds in the same order).

    What two runs of one seed have in common cancels out. Pairs with a nan or a zero base are left out. Raises
    ValueError for sequences of different lengths.
    """
    return mean_ci((x - y) / y if y else math.nan for x, y in zip(a, b, strict=True))


def student_t(freedom: int) -> float:
    """The two-sided 95 % quantile; above the table by the expansion 26.7.5 of Abramowitz and Stegun (within 2e-4)."""
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    z = NormalDist().inv_cdf(0.975)
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
