"""Nodes as envoy-data-plane's typed messages: the only file that knows that library.

Any messages within a message are left out; follow them through the node. What does not fit a field's type is reported
and left out too, so that one mistake does not hide the others; fields that this version does not know are ignored.
"""

from __future__ import annotations

import typing
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar

import betterproto2

from extproc.config.nodes import Node, snake_case
from extproc.config.report import Problem, error

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its use of pydantic is deprecated, which is no news to an operator
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
        RoutingPriority,
    )
    from envoy_data_plane.envoy.config.endpoint.v3 import LbEndpoint
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
    "LbEndpoint",
    "Listener",
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
            message = _convert(kind, accepted | {key: child.plain()})
        except _REFUSALS as refusal:
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
    fields = _fields(kind)
    for key, child in node.entries():
        if key == "@type":
            continue
        if snake_case(key) not in fields:
            yield Unknown(key, child, kind.__name__, tuple(fields))
            continue
        inner = fields[snake_case(key)]
        if inner is not None and child.get("@type") is None:
            for part in (child, *child.items()):
                yield from unknown_fields(inner, part)


@cache
def _fields(kind: type[betterproto2.Message]) -> dict[str, type[betterproto2.Message] | None]:
    """The fields as Envoy writes them, with the message in each, unless its keys are no fields (maps, Structs)."""
    hints = typing.get_type_hints(kind).items()
    return {name.rstrip("_"): _message_in(hint) for name, hint in hints if not name.startswith("_")}


def _message_in(hint: object) -> type[betterproto2.Message] | None:
    if typing.get_origin(hint) is dict:
        return None
    if isinstance(hint, type) and issubclass(hint, betterproto2.Message):
        return None if ".google.protobuf" in hint.__module__ else hint
    return next(filter(None, map(_message_in, typing.get_args(hint))), None)


# What betterproto2 and pydantic raise at values that do not fit; ValidationError is a ValueError.
_REFUSALS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)


def _reason(refusal: Exception) -> str:
    lines = [line.strip() for line in str(refusal).splitlines()]
    # pydantic: a heading, the field, what is wrong with it, a link.
    return (": ".join(lines[1:3]) or "".join(lines) or type(refusal).__name__)[:200]


def _convert(kind: type[M], fields: dict[str, object]) -> M:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated fields: Envoy itself warns of them
        return kind.from_dict(fields, ignore_unknown_fields=True)
