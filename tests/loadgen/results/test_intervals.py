"""Means over seeds come with the intervals that Student's t gives them."""

from __future__ import annotations

import math

import pytest

from loadgen.results.intervals import mean_ci, paired, student_t


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (4, 2.7764), (10, 2.2281), (11, 2.2010), (20, 2.0860), (120, 1.9799)]
)
def test_quantiles_of_student_t(freedom: int, quantile: float) -> None:
    """The table and the expansion above it agree with published tables."""
    assert student_t(freedom) == pytest.approx(quantile, abs=2e-4)


def test_an_interval_by_hand() -> None:
    """Five values with mean 3 and standard deviation 1.5811: half width 2.7764 * 1.5811 / sqrt(5)."""
    interval = mean_ci([1, 2, 3, 4, 5])
    assert (interval.mean, interval.n) == (3, 5)
    assert interval.half == pytest.approx(1.9632, abs=1e-3)
    assert interval.low == pytest.approx(3 - 1.9632, abs=1e-3)
    assert interval.clear


def test_what_all_seeds_share_cancels_out() -> None:
    """Ten per cent more on every seed is a clear ten per cent, however much the seeds differ."""
    base = [100.0, 200.0, 400.0]
    difference = paired([110.0, 220.0, 440.0], base)
    assert difference.mean == pytest.approx(0.1)
    assert difference.half == pytest.approx(0.0, abs=1e-12)
    assert difference.clear
    assert not paired([90.0, 220.0, 410.0], base).clear


def test_one_seed_tells_of_no_spread() -> None:
    """A single value has a mean and no interval, and is never clear of noise; no value has neither."""
    single = mean_ci([7.0])
    assert single.mean == 7.0
    assert math.isnan(single.half)
    assert not single.clear
    assert math.isnan(mean_ci([]).mean)


def test_missing_values_are_left_out() -> None:
    """A measure that one run could not answer takes no part; unequal numbers of seeds are a mistake."""
    assert mean_ci([1.0, math.nan, 3.0]).n == 2
    assert paired([1.0, 2.0, 5.0], [1.0, 0.0, 4.0]).n == 2
    with pytest.raises(ValueError, match="argument"):
        paired([1.0], [1.0, 2.0])
