"""Who may open a stream, by the token in its metadata."""

from __future__ import annotations

import logging

import pytest

from extproc.base import metrics
from extproc.base.headers import TOKEN
from extproc.processor.shared_token import AGAIN_S, Access

OTHERS = (("x-smetric-cluster", "pool"), ("user-agent", "grpc"))


def test_without_a_token_everybody_may() -> None:
    """The default, for a port on loopback or in a network of its own."""
    assert Access().admits(OTHERS)
    assert Access().admits(((TOKEN, "whatever"),))


@pytest.mark.parametrize(
    ("shown", "admitted"),
    [
        (("old",), True),
        (("new",), True),  # while one takes the other's place
        ((b"new",), True),
        (("wrong", "new"), True),
        (("wrong",), False),
        (("",), False),
        (("ne",), False),
        (("new ",), False),
        (("\u0430",), False),
        ((), False),
    ],
)
def test_one_of_the_tokens_must_be_shown(shown: tuple[str | bytes, ...], admitted: bool) -> None:
    """The whole of it, and nothing else."""
    metadata = [*OTHERS, *((TOKEN, token) for token in shown)]
    assert Access(["old", "new"]).admits(metadata) is admitted


def test_refusals_are_counted_and_told_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    """Who knocks may do so a thousand times a second."""
    access, before = Access(["s3cret"]), metrics.REFUSED_STREAMS._value.get()
    with caplog.at_level(logging.WARNING):
        for now in (0.0, 1.0, AGAIN_S - 1.0, AGAIN_S):
            access.refused("ipv4:10.0.0.1:5", now)
    assert metrics.REFUSED_STREAMS._value.get() == before + 4
    assert len(caplog.records) == 2
    assert "s3cret" not in caplog.text
