"""A cluster's active HTTP health check, where we can repeat it: plain HTTP/1, to the port of the requests."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from extproc.config.envoy_types import HealthCheck as Check
from extproc.config.envoy_types import HealthCheckHttpHealthCheck as Http
from extproc.config.envoy_types import read
from extproc.config.nodes import Node
from extproc.config.report import Problem, warning
from extproc.config.settings import HealthCheck

_OK: Final = range(200, 201)  # what Envoy expects where nothing is written
# Settings that would make our check differ from Envoy's, by their place.
_CLUSTER: Final = ("transport_socket", "transport_socket_matches")
_ENDPOINT: Final = ("health_check_config",)
_CHECK: Final = ("alt_port", "tls_options", "transport_socket_match_criteria")
_HTTP: Final = ("send", "receive", "method", "codec_client_type", "service_name_matcher", "request_headers_to_add")


def health_check(cluster: Node, problems: list[Problem]) -> HealthCheck | None:
    """The check to repeat; None where the cluster has none, or, with a warning, one that we cannot repeat."""
    node = cluster.get("health_checks", 0)
    if node is None:
        return None
    http_node = node.get("http_health_check")
    strange = _strange(cluster, node, http_node)
    if http_node is None or strange is not None:
        text = (
            "we cannot repeat this health check, and override_host does not look at it: an instance that fails it is "
        )
        advice = "write http_health_check: {path: /health}, plain and to the port of the requests"
        problems.append(warning((strange or node).place, f"{text}chosen until requests fail there", advice))
        return None
    fields = ("timeout", "interval", "unhealthy_threshold", "healthy_threshold")
    check = read(Check, node, problems, *fields).message
    http = read(Http, http_node, problems, "host", "path", "expected_statuses").message
    if check.timeout is None or check.interval is None or check.timeout <= timedelta(0) or not http.path:
        return None  # Envoy does not start with it
    return HealthCheck(
        path=http.path,
        host=http.host or _name(cluster),
        interval_s=check.interval.total_seconds(),
        timeout_s=check.timeout.total_seconds(),
        unhealthy_threshold=check.unhealthy_threshold or 1,
        healthy_threshold=check.healthy_threshold or 1,
        statuses=tuple(range(each.start, each.end) for each in http.expected_statuses) or (_OK,),
    )


def _strange(cluster: Node, check: Node, http: Node | None) -> Node | None:
    """The settings that keep us from repeating the check."""
    endpoints = cluster.every("load_assignment", "endpoints", "lb_endpoints", "endpoint")
    places = [(cluster, _CLUSTER), (check, _CHECK), (http, _HTTP), *((one, _ENDPOINT) for one in endpoints)]
    found = (node.get(key) for node, keys in places if node is not None for key in keys)
    return next((node for node in found if node is not None), None)


def _name(cluster: Node) -> str:
    name = cluster.get("name")
    return "" if name is None else str(name.raw.value)
