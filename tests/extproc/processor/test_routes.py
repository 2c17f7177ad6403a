"""Settings of a stream's route from its metadata: remembered, and never a failure."""

from __future__ import annotations

import logging

import pytest

from extproc.base import metrics
from extproc.processor.routes import MOST_ROUTES, Routes
from extproc.routing.route_settings import RouteSettings

DEFAULT = RouteSettings("pool", "least-loaded")


def test_metadata_is_laid_over_the_default() -> None:
    """What a route does not say is the filter's."""
    routes = Routes(DEFAULT)
    assert routes(()).cluster == "pool"
    assert routes((("x-smetric-max-load", "2"),)).max_load == 2
    assert routes((("x-smetric-policy", "round-robin"),)).policy == "round-robin"


def test_what_cannot_be_used_is_the_default_and_counts(caplog: pytest.LogCaptureFixture) -> None:
    """Each stream counts, and the log says it once: streams come by the thousand."""
    routes, before = Routes(DEFAULT), metrics.BAD_ROUTES._value.get()
    with caplog.at_level(logging.ERROR):
        assert [routes((("x-smetric-policy", "smetrics"),)) for _ in range(3)] == [DEFAULT] * 3
    assert metrics.BAD_ROUTES._value.get() == before + 3
    assert len(caplog.records) == 1


def test_without_any_pool_there_is_a_route_all_the_same() -> None:
    """It names no pool, and so Envoy's own policy decides."""
    assert Routes(None)(()).clusters == ()


def test_what_is_remembered_is_bounded() -> None:
    """A client may choose the metadata, where the YAML says %REQ(...)%."""
    routes = Routes(DEFAULT)
    for number in range(MOST_ROUTES + 10):
        routes((("x-smetric-cluster", f"pool-{number}"),))
    assert routes._read.cache_info().currsize == MOST_ROUTES
