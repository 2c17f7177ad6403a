"""How streams that Envoy closes early are told from short replies, and how often the log says so."""

from __future__ import annotations

import logging

import pytest

from extproc.base import metrics
from extproc.processor.early_ends import AGAIN_S, MOMENT_S, TOO_MANY, EarlyEnds


def test_many_that_are_closed_early_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each counts; the log names the remedy after many, and again after an hour."""
    before = metrics.UNCOUNTED.labels("pool", "closed_early")._value.get()
    early_ends = EarlyEnds()
    with caplog.at_level(logging.WARNING):
        for _ in range(TOO_MANY - 1):
            early_ends.streamed("pool", 0.001, 0.0)
        assert not caplog.records
        for _ in range(5):
            early_ends.streamed("pool", 0.001, 1.0)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "response_trailer_mode: SEND" in caplog.text
        early_ends.streamed("pool", 0.001, 1.0 + AGAIN_S)
    assert len(caplog.records) == 2
    assert metrics.UNCOUNTED.labels("pool", "closed_early")._value.get() == before + TOO_MANY + 5


def test_short_replies_among_long_ones_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Where Envoy keeps the streams of long replies, it closes none early."""
    early_ends = EarlyEnds()
    for _ in range(TOO_MANY * 2):
        early_ends.streamed("pool", 0.001, 0.0)
        early_ends.streamed("pool", MOMENT_S, 0.0)
    assert not caplog.records


def test_a_tunnel_that_was_left_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """Once: what it says holds for all of them."""
    early_ends = EarlyEnds()
    for _ in range(3):
        early_ends.left("pool", 0.0)
    assert ["allow_mode_override: true" in record.getMessage() for record in caplog.records] == [True]
