"""Metrics that have an instance's name end with the instance."""

from __future__ import annotations

from prometheus_client import generate_latest
from prometheus_client.metrics import MetricWrapperBase

from extproc.base import metrics


def test_nothing_of_an_instance_that_left_is_scraped() -> None:
    """Every metric with its label, whatever other labels it has: a new metric cannot be forgotten here."""
    found = [metric for metric in vars(metrics).values() if isinstance(metric, MetricWrapperBase)]
    labelled = [metric for metric in found if "instance" in metric._labelnames]
    assert metrics.UNHEALTHY in labelled
    for metric in labelled:
        for name in ("gone:1", "stays:1"):
            for other in ("one", "two"):
                given = {"pool": "pool", "instance": name}
                metric.labels(**{label: given.get(label, other) for label in metric._labelnames})
    metrics.forget_instance("pool", "gone:1")
    page = generate_latest(metrics.REGISTRY).decode()
    assert "gone:1" not in page
    assert page.count('instance="stays:1"') >= len(labelled)
    metrics.forget_instance("pool", "stays:1")
