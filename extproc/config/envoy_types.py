"""Nodes as envoy-data-plane's typed messages: the only file that knows that library and its modules.

Any messages within a message are left out; follow them through the node. What does not fit a field's type is reported
and left out too, so that one mistake does not hide the others; fields that this version does not know are ignored.

Its classes are taken without pydantic's validators: compiling them for every message that Cluster and Listener can
reach is a second of CPU, several times what everything else here costs. `field_values.py` reads the values instead,
the same where the classes had been imported before, with their validators.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import betterproto2
import pydantic.dataclasses

from extproc.config.field_values import fields_of, message_of
from extproc.config.nodes import Node, snake_case
from extproc.config.report import Problem, error


@contextmanager
def _without_validators() -> Iterator[None]:
    """While it lasts, `pydantic.dataclasses.dataclass` makes plain dataclasses, which is all that reading needs.

    They do not warn of deprecated fields either; Envoy itself does.
    """

    def plain(*, config: object = None, **options: Any) -> Callable[[type], type]:
        def decorate(kind: type) -> type:
            if "__post_init__" in vars(kind):
                delattr(kind, "__post_init__")
            return dataclasses.dataclass(**options)(kind)

        return decorate

    compiled = pydantic.dataclasses.dataclass
    pydantic.dataclasses.dataclass = plain  # type: ignore[assignment]
    try:
        yield
    finally:
        pydantic.dataclasses.dataclass = compiled


with _without_validators(), warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its use of pydantic is deprecated; an operator can do nothing about that
    from envoy_data_plane.envoy.config.cluster.v3 import (
        CircuitBreakersThresholds,
        Cluster,
        ClusterDiscoveryType,
        ClusterDnsLookupFamily,
    )
    from envoy_data_plane.envoy.config.core.v3 import (
        HealthCheck,
        HealthCheckHttpHealthCheck,
        HealthStatus,
        HttpProtocolOptionsHeadersWithUnderscoresAction,
        RoutingPriority,
    )
    from envoy_data_plane.envoy.config.endpoint.v3 import LbEndpoint, LocalityLbEndpoints
    from envoy_data_plane.envoy.config.listener.v3 import Listener
    from envoy_data_plane.envoy.config.route.v3 import FilterConfig, Route, RouteAction, VirtualHost
    from envoy_data_plane.envoy.extensions.clusters.common.dns.v3 import DnsLookupFamily
    from envoy_data_plane.envoy.extensions.clusters.dns.v3 import DnsCluster
    from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
        ExternalProcessor,
        ExtProcOverrides,
        ExtProcPerRoute,
        ProcessingMode,
        ProcessingModeBodySendMode,
        ProcessingModeHeaderSendMode,
    )
    from envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 import HeaderMutation
    from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpConnectionManager
    from envoy_data_plane.envoy.extensions.load_balancing_policies.override_host.v3 import OverrideHost
    from envoy_data_plane.envoy.extensions.upstreams.http.v3 import HttpProtocolOptions

__all__ = [
    "CircuitBreakersThresholds",
    "Cluster",
    "ClusterDiscoveryType",
    "ClusterDnsLookupFamily",
    "DnsCluster",
    "DnsLookupFamily",
    "ExtProcOverrides",
    "ExtProcPerRoute",
    "ExternalProcessor",
    "FilterConfig",
    "HeaderMutation",
    "HealthCheck",
    "HealthCheckHttpHealthCheck",
    "HealthStatus",
    "HttpConnectionManager",
    "HttpProtocolOptions",
    "HttpProtocolOptionsHeadersWithUnderscoresAction",
    "LbEndpoint",
    "Listener",
    "LocalityLbEndpoints",
    "Located",
    "OverrideHost",
    "ProcessingMode",
    "ProcessingModeBodySendMode",
    "ProcessingModeHeaderSendMode",
    "Route",
    "RouteAction",
    "RoutingPriority",
    "Unknown",
    "VirtualHost",
    "read",
    "unknown_fields",
]

M = TypeVar("M", bound=betterproto2.Message)


@dataclass(frozen=True, slots=True)
class Located(Generic[M]):
    """A message and the node it was read from, so that a problem in it can say where."""

    message: M
    node: Node


def read(kind: type[M], node: Node, problems: list[Problem], *fields: str) -> Located[M]:
    """The node as a message of this kind; what Envoy would not accept is added to the problems.

    Only these fields are read, or all where none is named: what we do not use may be newer than our types.
    """
    accepted: dict[str, object] = {}
    message = kind()
    for key, child in node.entries():
        if child.get("@type") is not None or (fields and snake_case(key) not in fields):
            continue
        try:
            # Together with what came before it, since two fields may exclude each other.
            message = message_of(kind, accepted | {key: child.plain()})
        except ValueError as refusal:
            text = f"Envoy does not accept this as {key} of {kind.__name__}: {_reason(refusal)}"
            advice = "run `envoy --mode validate -c FILE`: it names the part that is wrong"
            problems.append(error(child.place, text, advice))
        else:
            accepted[key] = child.plain()
    return Located(message, node)


@dataclass(frozen=True, slots=True)
class Unknown:
    """A key that the message has no field for."""

    key: str
    node: Node
    message: str
    fields: tuple[str, ...]


def unknown_fields(kind: type[betterproto2.Message], node: Node) -> Iterator[Unknown]:
    """Every key in the node, however deep, that this version of Envoy's API does not know; Any messages are skipped."""
    fields = fields_of(kind)
    for key, child in node.entries():
        if key == "@type":
            continue
        field = fields.get(snake_case(key))
        if field is None:
            yield Unknown(key, child, kind.__name__, tuple(fields))
        elif field.message is not None and child.get("@type") is None:
            for part in (child, *child.items()):
                yield from unknown_fields(field.message, part)


def _reason(refusal: Exception) -> str:
    return (" ".join(str(refusal).split()) or type(refusal).__name__)[:200]
