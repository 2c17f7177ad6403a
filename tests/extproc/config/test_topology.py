"""Filters, routes and what is told on them, wherever they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from extproc import config
from extproc.base.errors import ConfigError
from extproc.routing.route_settings import RouteSettings, route_settings
from tests.support.envoy_yaml import (
    DELETE,
    change,
    clean,
    cluster,
    ext_proc,
    inspect,
    manager,
    read,
)

PER_ROUTE = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"


def override(**metadata: str) -> dict[str, Any]:
    """A typed_per_filter_config that lays this over the filter's metadata."""
    entries = [{"key": key.replace("_", "-"), "value": value} for key, value in metadata.items()]
    return {"envoy.filters.http.ext_proc": {"@type": PER_ROUTE, "overrides": {"grpc_initial_metadata": entries}}}


def test_a_filter_within_a_matcher_is_found(tmp_path: Path) -> None:
    """ext_proc may stand inside ExtensionWithMatcher and composite filters."""
    yaml = clean()
    (entry,) = (f for f in manager(yaml)["http_filters"] if f["name"].endswith("ext_proc"))
    url = "type.googleapis.com/envoy.extensions.common.matching.v3.ExtensionWithMatcher"
    inner = {"name": "inner", "typed_config": entry["typed_config"]}
    entry["typed_config"] = {"@type": url, "extension_config": inner, "xds_matcher": {"on_no_match": {}}}
    report = inspect(yaml, tmp_path)
    assert report.problems == ()
    assert report.settings
    assert report.settings.default


def test_another_ext_proc_filter_is_none_of_our_business(tmp_path: Path) -> None:
    """A filter that names nothing of ours is neither read nor judged."""
    yaml = clean()
    url = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"
    typed = {"@type": url, "grpc_service": {"envoy_grpc": {"cluster_name": "guard"}}}
    manager(yaml)["http_filters"].insert(0, {"name": "guard", "typed_config": typed})
    assert inspect(yaml, tmp_path).problems == ()


def test_what_we_do_not_know_is_left_alone(tmp_path: Path) -> None:
    """Unknown filters, clusters, types and fields of a newer Envoy are no mistakes."""
    yaml = clean()
    yaml["a_field_of_tomorrow"] = {"x": [1, {"y": None}]}
    yaml["static_resources"]["secrets"] = [{"name": "s", "tls_certificate": {}}]
    yaml["static_resources"]["clusters"].append({"name": "other", "type": "LOGICAL_DNS", "field_of_tomorrow": 1})
    cluster(yaml, "engines")["field_of_tomorrow"] = 1
    manager(yaml)["http_filters"].insert(0, {"name": "x", "typed_config": {"@type": "type.googleapis.com/x.Y", "z": 1}})
    assert inspect(yaml, tmp_path).problems == ()


def test_a_field_of_tomorrow_in_our_filter_is_read_over_with_a_warning(tmp_path: Path) -> None:
    """Our types may be older than Envoy: what resembles nothing that they know stops nobody."""
    yaml = clean()
    change(ext_proc(yaml), "field_of_tomorrow", {"deep": [1]})
    report = inspect(yaml, tmp_path)
    assert [problem.severity for problem in report.problems] == [config.Severity.WARNING]
    assert report.settings is not None


def test_a_percent_sign_is_doubled_and_a_command_is_whole(tmp_path: Path) -> None:
    """As Envoy's formatter reads them: what it fills in is not judged, and what it sends as it stands is."""
    for value in ("%REQ(x)%", "%REQ(x?y):12%", "%START_TIME(%s)%", "%HOSTNAME%", "1%%%REQ(x)%"):
        yaml = clean()
        ext_proc(yaml)["grpc_service"]["initial_metadata"].append({"key": "x-smetric-max-load", "value": value})
        assert inspect(yaml, tmp_path).problems == (), value
    for value in ("50%", "%REQ(x", "%req(x)%", "%REQ(x)% %", "%"):
        yaml = clean()
        ext_proc(yaml)["grpc_service"]["initial_metadata"].append({"key": "x-other", "value": value})
        (problem,) = inspect(yaml, tmp_path).problems
        assert problem.message == f"x-other is {value!r}: Envoy takes % for a command and drops every decision"


def test_where_each_route_waits_as_long_as_it_says_the_default_does_not_matter(tmp_path: Path) -> None:
    """A route's idle_timeout takes the place of stream_idle_timeout."""
    yaml = clean()
    change(manager(yaml), "stream_idle_timeout", DELETE)
    assert "stream_idle_timeout is 300s (the default)" in inspect(yaml, tmp_path).render()
    manager(yaml)["route_config"]["virtual_hosts"][0]["routes"][0]["route"]["idle_timeout"] = "0s"
    assert inspect(yaml, tmp_path).problems == ()


def test_routes_lay_their_settings_over_the_filters(tmp_path: Path) -> None:
    """Virtual host, route and weighted cluster, the most specific last, wrapped in a FilterConfig or not."""
    yaml = clean()
    host = manager(yaml)["route_config"]["virtual_hosts"][0]
    host["typed_per_filter_config"] = override(x_smetric_overload="7", x_smetric_hit_ratio="0.1")
    plain = host["routes"][0]
    wrapped = clean()["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    wrapped = wrapped["route_config"]["virtual_hosts"][0]["routes"][0]
    wrapped |= {"name": "wrapped", "match": {"prefix": "/a"}}
    inner = override(x_smetric_policy="round-robin")["envoy.filters.http.ext_proc"]
    url = "type.googleapis.com/envoy.config.route.v3.FilterConfig"
    wrapped["typed_per_filter_config"] = {"envoy.filters.http.ext_proc": {"@type": url, "config": inner}}
    weighted = {"name": "weighted", "match": {"prefix": "/b"}, "route": dict(plain["route"])}
    del weighted["route"]["cluster"]
    entry = {"name": "engines", "weight": 1, "typed_per_filter_config": override(x_smetric_hit_ratio="0.9")}
    weighted["route"]["weighted_clusters"] = {"clusters": [entry]}
    disabled = {"name": "off", "match": {"prefix": "/c"}, "route": {"cluster": "extproc"}}
    disabled["typed_per_filter_config"] = {"envoy.filters.http.ext_proc": {"@type": PER_ROUTE, "disabled": True}}
    moved = {"name": "moved", "match": {"path": "/d"}, "redirect": {"path_redirect": "/"}}
    host["routes"] = [wrapped, weighted, disabled, moved, plain]
    report = inspect(yaml, tmp_path)
    assert report.problems == (), report.render()
    floor = {"overload_floor": 1.0}
    assert dict(report.routes) == {
        "agents/wrapped": RouteSettings("engines", "round-robin", {}),
        "agents/weighted": RouteSettings("engines", "smetric", {"overload": 7.0, "hit_ratio": 0.9} | floor),
        "agents, prefix /": RouteSettings("engines", "smetric", {"overload": 7.0, "hit_ratio": 0.1} | floor),
    }


def test_a_pool_may_be_named_by_routes_alone(tmp_path: Path) -> None:
    """Then there is no default, and a stream without the route's metadata has no pool."""
    yaml = clean()
    ext_proc(yaml)["grpc_service"]["initial_metadata"] = []
    manager(yaml)["route_config"]["virtual_hosts"][0]["routes"][0]["typed_per_filter_config"] = override(
        x_smetric_cluster="engines"
    )
    found = read(yaml, tmp_path)
    assert found.default is None
    assert list(found.pools) == ["engines"]
    with pytest.raises(ConfigError, match="x-smetric-cluster"):
        route_settings({}, found.default)
