"""Checks of routes where the model chooses the pool, and where ids of responses must be seen."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from extproc import config
from extproc.config import Problem, Severity
from tests.support.envoy_yaml import Yaml, clean, cluster, ext_proc, inspect, manager, path_of, write

FILTER = "envoy.filters.http.ext_proc"
Change = Callable[[Yaml], None]


def routes(yaml: Yaml) -> list[Yaml]:
    found: list[Yaml] = manager(yaml)["route_config"]["virtual_hosts"][0]["routes"]
    return found


def two_pools(yaml: Yaml) -> None:
    """`engines` serves a and b, `others` c; the model chooses."""
    other = copy.deepcopy(cluster(yaml, "engines")) | {"name": "others"}
    for endpoint in other["load_assignment"]["endpoints"][0]["lb_endpoints"]:
        endpoint["endpoint"]["address"]["socket_address"]["address"] += "-other"
    yaml["static_resources"]["clusters"].append(other)
    for name, models in (("engines", ["a", "b"]), ("others", ["c"])):
        cluster(yaml, name)["metadata"]["filter_metadata"]["smetric"]["models"] = models
    metadata = ext_proc(yaml)["grpc_service"]["initial_metadata"]
    next(entry for entry in metadata if entry["key"] == "x-smetric-cluster")["value"] = "engines,others"
    route = copy.deepcopy(routes(yaml)[0])
    route["match"]["headers"] = [{"name": "X-Smetric-Pool", "string_match": {"exact": "others"}}]
    route["route"]["cluster"] = "others"
    routes(yaml).insert(0, route)


def judged(change: Change, directory: Path) -> list[Problem]:
    yaml = clean()
    change(yaml)
    return list(inspect(yaml, directory).problems)


def test_a_list_of_pools_is_understood(tmp_path: Path) -> None:
    """Both pools are read, nothing is complained of, and a route's settings name them in order."""
    yaml = clean()
    two_pools(yaml)
    report = inspect(yaml, tmp_path)
    assert not report.problems
    settings = config.load(write(yaml, tmp_path))
    assert set(settings.pools) == {"engines", "others"}
    assert settings.default is not None
    assert settings.default.clusters == ("engines", "others")


def without_route(yaml: Yaml) -> None:
    two_pools(yaml)
    del routes(yaml)[0]


def without_models(yaml: Yaml) -> None:
    two_pools(yaml)
    del cluster(yaml, "others")["metadata"]["filter_metadata"]["smetric"]["models"]


def same_models(yaml: Yaml) -> None:
    two_pools(yaml)
    cluster(yaml, "others")["metadata"]["filter_metadata"]["smetric"]["models"] = ["c", "b"]


def unknown_pool(yaml: Yaml) -> None:
    two_pools(yaml)
    metadata = ext_proc(yaml)["grpc_service"]["initial_metadata"]
    next(entry for entry in metadata if entry["key"] == "x-smetric-cluster")["value"] = "engines, other"


def responses_route(yaml: Yaml, *, override: bool, mode: str = "BUFFERED", shown: bool = False) -> None:
    filtered: dict[str, Any] = ext_proc(yaml)
    if not override:
        del filtered["allow_mode_override"]
    filtered["processing_mode"] |= {"request_body_mode": mode, "response_trailer_mode": "SEND"}
    filtered["failure_mode_allow"] = mode == "BUFFERED"
    route = copy.deepcopy(routes(yaml)[0])
    route["match"] = {"path_separated_prefix": "/v1/responses"}
    if shown:
        processing = {**filtered["processing_mode"], "response_body_mode": "STREAMED"}
        kind = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
        route["typed_per_filter_config"] = {FILTER: {"@type": kind, "overrides": {"processing_mode": processing}}}
    routes(yaml).insert(0, route)


@pytest.mark.parametrize(
    ("change", "severity", "place", "text"),
    [
        (without_route, Severity.ERROR, "routes[0].match", "no route leads requests for the models of others there"),
        (without_models, Severity.WARNING, "filter_metadata.smetric", "others names no models"),
        (same_models, Severity.WARNING, "smetric.models", "engines and others both serve b"),
        (unknown_pool, Severity.ERROR, "value", "no cluster 'other' here: did you mean others?"),
        (
            lambda yaml: responses_route(yaml, override=False),
            Severity.WARNING,
            "typed_config",
            "previous_response_id goes by load",
        ),
        (
            lambda yaml: responses_route(yaml, override=True, mode="FULL_DUPLEX_STREAMED"),
            Severity.WARNING,
            "routes[0].match",
            "Envoy takes no mode_override",
        ),
    ],
)
def test_what_is_wrong_is_said(change: Change, severity: Severity, place: str, text: str, tmp_path: Path) -> None:
    """Each mistake has its place, its consequence and its remedy."""
    problems = [problem for problem in judged(change, tmp_path) if text in problem.render()]
    assert [problem.severity for problem in problems] == [severity]
    assert path_of(problems[0]).endswith(place)


@pytest.mark.parametrize("mode", ["BUFFERED", "FULL_DUPLEX_STREAMED"])
def test_a_route_that_shows_responses_is_enough(mode: str, tmp_path: Path) -> None:
    """There the body is shown for a reason: neither its cost nor the missing override is complained of."""
    told = judged(lambda yaml: responses_route(yaml, override=False, mode=mode, shown=True), tmp_path)
    assert not [problem for problem in told if "response" in problem.render() and "body" in problem.render()]


def test_a_route_for_everything_needs_no_override(tmp_path: Path) -> None:
    """Who names no route for responses is not bothered with them."""
    assert not judged(lambda yaml: ext_proc(yaml).pop("allow_mode_override"), tmp_path)
