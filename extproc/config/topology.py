"""Where a request goes in an Envoy configuration: listeners, ext_proc filters, routes, clusters. Judges nothing.

Only what concerns us is followed, and the rest may be anything. Filters are found however deep they are wrapped
(matchers, composites); per-route settings are laid over each other as Envoy does it, the most specific last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from extproc.config.envoy_types import (
    Cluster,
    ExternalProcessor,
    ExtProcOverrides,
    ExtProcPerRoute,
    FilterConfig,
    HttpConnectionManager,
    Listener,
    Located,
    Route,
    VirtualHost,
    read,
)
from extproc.config.nodes import Node
from extproc.config.report import Problem
from extproc.routing.route_settings import CLUSTER, PREFIX, cluster_names

EXT_PROC = "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"
HCM = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
FILTER_CONFIG = "envoy.config.route.v3.FilterConfig"
SMETRIC = "smetric"

_MANAGER_FIELDS = (
    "stream_idle_timeout",
    "max_request_headers_kb",
    "common_http_protocol_options",
    "upgrade_configs",
)
_CLUSTER_FIELDS = (
    "name",
    "type",
    "circuit_breakers",
    "dns_refresh_rate",
    "dns_lookup_family",
    "http2_protocol_options",
)


# What Envoy's formatter reads as a percent sign or as a command: %NAME%, %NAME(arguments)%, %NAME(arguments):length%.
_COMMAND = re.compile(r"%%|%([A-Z0-9_]+)(?:\(.*?\))?(?::[0-9]+)?%")


@dataclass(frozen=True, slots=True)
class Header:
    """One entry of a gRPC stream's initial metadata, and where it is written."""

    written: str
    node: Node

    @property
    def value(self) -> str:
        """What is sent, where no command is in it."""
        return self.written.replace("%%", "%")

    @property
    def commands(self) -> tuple[str, ...]:
        """The names of the commands (`REQ`) by which Envoy fills in the value."""
        return tuple(filter(None, _COMMAND.findall(self.written)))

    @property
    def dynamic(self) -> bool:
        """Whether Envoy fills the value in for each request: it cannot be judged beforehand."""
        return bool(self.commands)

    @property
    def malformed(self) -> bool:
        """Whether it has a percent sign that Envoy can read neither as itself nor as a command."""
        return "%" in _COMMAND.sub("", self.written)


@dataclass(frozen=True, slots=True)
class RouteEntry:
    """One route to one cluster, with what ext_proc is told on it."""

    name: str
    route: Located[Route]
    virtual_host: Located[VirtualHost]
    cluster: str  # where Envoy sends it; empty where a header or a plugin decides
    metadata: Mapping[str, Header]  # the filter's and the route's together
    overrides: tuple[Located[ExtProcOverrides], ...]  # the most specific last
    disabled: bool

    @property
    def pools(self) -> tuple[str, ...]:
        """The pools that ext_proc decides for on this route; of several, the request's model chooses one."""
        header = self.metadata.get(CLUSTER)
        return () if header is None or self.disabled or header.dynamic else cluster_names(header.value)

    @property
    def foreign(self) -> bool:
        """Whether it leads past its pools: Envoy then ignores the decision, and how it serves is not ours to judge."""
        return bool(self.cluster and self.pools) and self.cluster not in self.pools


@dataclass(frozen=True, slots=True)
class Chain:
    """One ext_proc filter of ours in one HTTP connection manager, and the routes behind it."""

    listener: Located[Listener]
    manager: Located[HttpConnectionManager]
    filters: tuple[Node, ...]  # the manager's http_filters
    position: int  # of ours in `filters`
    filter: Located[ExternalProcessor]
    metadata: Mapping[str, Header]
    routes: tuple[RouteEntry, ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """What was found in the file."""

    document: Node
    clusters: Mapping[str, Located[Cluster]]
    chains: tuple[Chain, ...]

    def pool_routes(self) -> Iterator[tuple[Chain, RouteEntry]]:
        """The routes on which ext_proc decides."""
        for chain in self.chains:
            for route in chain.routes:
                if route.pools:
                    yield chain, route

    def pools(self) -> tuple[str, ...]:
        """Names of the clusters that are pools: named by a filter or route, or carrying our metadata."""
        named = [chain.metadata[CLUSTER] for chain in self.chains if CLUSTER in chain.metadata]
        named += [route.metadata[CLUSTER] for chain in self.chains for route in chain.routes if route.pools]
        names = [name for header in named if not header.dynamic for name in cluster_names(header.value)]
        names += [name for name, cluster in self.clusters.items() if is_ours(cluster.node)]
        return tuple(name for name in dict.fromkeys(names) if name in self.clusters)


def follow(document: Node, problems: list[Problem]) -> Topology:
    """Find all of it; what Envoy would refuse is added to the problems."""
    clusters = {}
    for node in document.every("static_resources", "clusters"):
        cluster = read(Cluster, node, problems, *_CLUSTER_FIELDS)
        clusters[cluster.message.name] = cluster
    found = [chain for node in document.every("static_resources", "listeners") for chain in _chains(node, problems)]
    ours = [chain for chain in found if _names_us(chain)]
    # A single ext_proc filter beside clusters with our metadata is ours, though it does not say so.
    chains = ours or (found if len(found) == 1 and any(is_ours(cluster.node) for cluster in clusters.values()) else [])
    return Topology(document, clusters, tuple(chains))


def smetric(node: Node) -> Node | None:
    """Our metadata on a cluster or an endpoint."""
    return node.get("metadata", "filter_metadata", SMETRIC)


def is_ours(cluster: Node) -> bool:
    """Whether a cluster or one of its endpoints carries our metadata."""
    endpoints = cluster.every("load_assignment", "endpoints", "lb_endpoints")
    return smetric(cluster) is not None or any(smetric(endpoint) is not None for endpoint in endpoints)


def initial_metadata(node: Node | None) -> dict[str, Header]:
    """Entries of a list of HeaderValue, by lower-case key."""
    entries = {}
    for item in node.items() if node is not None else ():
        key, value = item.get("key"), item.get("value")
        if key is not None and value is not None:
            entries[str(key.plain()).lower()] = Header(_text(value), value)
    return entries


def _text(node: Node | None) -> str:
    # As it is written: to Envoy, `2.0` without quotes is a string too.
    return str(node.raw.value) if node is not None else ""


def _names_us(chain: Chain) -> bool:
    everything = [chain.metadata, *(route.metadata for route in chain.routes)]
    return any(key.startswith(PREFIX) for metadata in everything for key in metadata)


def _chains(listener: Node, problems: list[Problem]) -> Iterator[Chain]:
    for manager in listener.find(HCM):
        filters = tuple(manager.every("http_filters"))
        for position, http_filter in enumerate(filters):
            for node in http_filter.find(EXT_PROC):
                metadata = initial_metadata(node.get("grpc_service", "initial_metadata"))
                name = http_filter.get("name")
                routes = _routes(manager, str(name.plain()) if name else "", metadata, problems)
                yield Chain(
                    read(Listener, listener, problems, "name", "per_connection_buffer_limit_bytes"),
                    read(HttpConnectionManager, manager, problems, *_MANAGER_FIELDS),
                    filters,
                    position,
                    read(ExternalProcessor, node, problems),
                    metadata,
                    tuple(routes),
                )


def _routes(
    manager: Node, filter_name: str, metadata: Mapping[str, Header], problems: list[Problem]
) -> Iterator[RouteEntry]:
    for table in manager.every("route_config"):
        for host_node in table.every("virtual_hosts"):
            host = read(VirtualHost, host_node, problems, "name", "retry_policy", "request_body_buffer_limit")
            for node in host_node.every("routes"):
                route = read(Route, node, problems, "name", "route", "request_body_buffer_limit")
                for cluster, weight in _targets(node):
                    levels = [level for level in (table, host_node, node, weight) if level is not None]
                    overrides, disabled = _per_route(levels, filter_name, problems)
                    own = [initial_metadata(override.node.get("grpc_initial_metadata")) for override in overrides]
                    laid = dict(metadata)
                    for entries in own:
                        laid |= entries
                    name = _name(host.message.name, route, node)
                    yield RouteEntry(name, route, host, cluster, laid, overrides, disabled)


def _name(host: str, route: Located[Route], node: Node) -> str:
    if route.message.name:
        return f"{host}/{route.message.name}"
    match = node.get("match")
    parts = (
        [f"{key} {value.raw.value}" for key, value in match.entries() if isinstance(value.raw.value, str)]
        if match
        else []
    )
    return f"{host}, {parts[0]}" if parts else host


def _targets(route: Node) -> Iterator[tuple[str, Node | None]]:
    action = route.get("route")
    if action is None:
        return  # a redirect or a direct response
    weights = list(action.every("weighted_clusters", "clusters"))
    for node in weights:
        yield _text(node.get("name")), node
    if not weights:
        yield _text(action.get("cluster")), None


def _per_route(
    levels: list[Node], filter_name: str, problems: list[Problem]
) -> tuple[tuple[Located[ExtProcOverrides], ...], bool]:
    overrides: list[Located[ExtProcOverrides]] = []
    disabled = False
    for level in levels:
        node = level.get("typed_per_filter_config", filter_name)
        if node is not None and node.type_name == FILTER_CONFIG:
            disabled = read(FilterConfig, node, problems, "disabled").message.disabled
            node = node.get("config")
        if node is None:
            continue
        disabled = bool(read(ExtProcPerRoute, node, problems, "disabled").message.disabled)
        inner = node.get("overrides")
        if inner is not None:
            overrides.append(read(ExtProcOverrides, inner, problems))
    return tuple(overrides), disabled
