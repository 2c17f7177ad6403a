"""Checks of the clusters: the pool's, whose hosts are the instances, and the one of the ext_proc server itself."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from extproc.base.headers import DESTINATION, NAMESPACE
from extproc.base.model import Role
from extproc.config.checks.shared import OVERRIDE_POLICY as POLICY
from extproc.config.checks.shared import REPLY, Pools, filters, override_host, shown
from extproc.config.envoy_types import (
    CircuitBreakersThresholds,
    Cluster,
    HttpProtocolOptions,
    Located,
    RoutingPriority,
    read,
)
from extproc.config.report import Problem, error, warning
from extproc.config.topology import Topology
from extproc.routing.route_settings import suggest

UPSTREAM: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

DEFAULT_LIMIT = 1024  # Envoy's, of connections, pending requests and requests
DEFAULT_RETRIES = 3  # Envoy's, at a time
_ADVICE = "write circuit_breakers: {thresholds: [{%s}]}"


def obeys(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """The pool's load balancer must read the destination that we set."""
    for cluster in _pools(topology, pools):
        policy = override_host(cluster)
        place = cluster.node.near(*POLICY).place
        advice = "write the load_balancing_policy of docs/drop-into-your-envoy.md: override_host, reading metadata "
        advice += f"{{key: {NAMESPACE}, path: [{{key: {DESTINATION}}}]}}"
        if policy is None:
            yield error(place, f"{cluster.message.name} does not use override_host: it ignores every decision", advice)
            continue
        sources = policy.message.override_host_sources
        headers = [source.header for source in sources if source.header]
        paths = [(s.metadata.key, [step.key for step in s.metadata.path]) for s in sources if s.metadata]
        obeyed = (NAMESPACE, [DESTINATION]) in paths
        place = policy.node.near("override_host_sources").place
        if obeyed and headers:
            text = f"with two sources Envoy takes the hosts of both: {headers[0]} can bring in one that nobody chose"
            yield warning(place, text, "keep the metadata source alone")
        if not obeyed and DESTINATION not in (header.lower() for header in headers):
            text = f"{cluster.message.name} looks elsewhere for the destination: it ignores every decision"
            yield error(place, text, advice)


def has_endpoints(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """A pool of the file's own must not be empty; one from EDS may fill later."""
    for name, pool in pools.items():
        if not pool.endpoints and pool.eds_path is None:
            place = topology.clusters[name].node.near("load_assignment", "endpoints").place
            advice = "write load_assignment: {endpoints: [{lb_endpoints: [...]}]}"
            yield error(place, f"{name} has no endpoint that may be used: every request is answered with 503", advice)


def both_halves(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """A pool with one half of a disaggregated pair lacks the other; one from EDS may get it later."""
    for name, pool in pools.items():
        roles = {endpoint.role for endpoint in pool.endpoints}
        if pool.eds_path is None and len(roles) == 1 and Role.BOTH not in roles:
            (only,) = roles
            other = Role.DECODE if only is Role.PREFILL else Role.PREFILL
            place = topology.clusters[name].node.near("load_assignment", "endpoints").place
            text = f"every endpoint of {name} has role {only}: nothing is disaggregated, and they serve whole requests"
            yield warning(place, text, f"give some endpoints role: {other} or both, or none a role")


def pool_limits(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Requests for a model take minutes: more than 1,024 at a time is little."""
    for cluster in _pools(topology, pools):
        names = ("max_connections", "max_pending_requests", "max_requests")
        text = "{name}: {limits} of at most {limit:,}: requests beyond wait, or are answered with 503"
        yield from _limits(cluster, names, text)


def retry_limit(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """An instance that dies takes all its requests along: each needs its retry at the same time."""
    for cluster in _pools(topology, pools):
        for index, limits in _thresholds(cluster):
            if limits.retry_budget is None and (limits.max_retries or DEFAULT_RETRIES) <= DEFAULT_LIMIT:
                count = limits.max_retries or DEFAULT_RETRIES
                place = cluster.node.near("circuit_breakers", "thresholds", index, "max_retries").place
                text = f"{cluster.message.name}: at most {count:,} retries at a time: where an instance dies with more "
                text += "requests in flight, the others are lost"
                yield warning(place, text, _ADVICE % "max_retries: 100000")


def stream_durations(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """A stream to an engine lasts as long as its reply, and so does the one to us."""
    lost = "a request that lasts longer is not counted, and where Envoy cannot fail open its reply is cut off"
    of_pools = dict.fromkeys(pools, "a reply that takes longer is cut off")
    of_server = dict.fromkeys(_servers(topology), lost)
    for name, text in (of_pools | of_server).items():
        options = _upstream(topology.clusters[name], "common_http_protocol_options")
        common = options.message.common_http_protocol_options if options else None
        limit = common.max_stream_duration if common else None
        if options is not None and limit is not None and timedelta(0) < limit < REPLY:
            place = options.node.near("common_http_protocol_options", "max_stream_duration").place
            yield warning(place, f"{name}: max_stream_duration is {shown(limit)}: {text}", "remove max_stream_duration")


def extproc_cluster(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """The server's cluster: it exists, speaks HTTP/2, and admits a stream for each request in flight."""
    for node, message in filters(topology):
        envoy_grpc = message.grpc_service.envoy_grpc if message.grpc_service else None
        if envoy_grpc is None:
            continue  # google_grpc: Envoy's cluster settings do not apply
        cluster = topology.clusters.get(envoy_grpc.cluster_name)
        if cluster is None:
            text = f"no cluster {envoy_grpc.cluster_name!r} here: {suggest(envoy_grpc.cluster_name, topology.clusters)}"
            place = node.near("grpc_service", "envoy_grpc", "cluster_name").place
            advice = "write the name of the cluster that holds the ext_proc server, or add it: "
            yield error(place, text, advice + "docs/drop-into-your-envoy.md, [6]")
            continue
        if not _speaks_http2(cluster):
            text = f"{cluster.message.name} speaks HTTP/1.1 and gRPC needs HTTP/2: no decision is ever made"
            advice = f"write under typed_extension_protocol_options: {UPSTREAM}: {{'@type': "
            advice += f"type.googleapis.com/{UPSTREAM}, explicit_http_config: {{http2_protocol_options: {{}}}}}}"
            yield error(cluster.node.near("typed_extension_protocol_options").place, text, advice)
        text = "{name}: {limits} of at most {limit:,}, and a stream stays open for as long as its request: requests "
        text += "beyond go on without a decision"
        yield from _limits(cluster, ("max_pending_requests", "max_requests"), text)


def health_by_tls(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Envoy asks for health by the cluster's own transport socket, and our health port speaks plaintext."""
    for _, message in filters(topology):
        envoy_grpc = message.grpc_service.envoy_grpc if message.grpc_service else None
        cluster = topology.clusters.get(envoy_grpc.cluster_name) if envoy_grpc else None
        if cluster is None or cluster.node.get("transport_socket") is None:
            continue
        if any(check.get("transport_socket_match_criteria") for check in cluster.node.every("health_checks")):
            continue
        for endpoint in cluster.node.every("load_assignment", "endpoints", "lb_endpoints"):
            port = endpoint.get("endpoint", "health_check_config", "port_value")
            if port is not None:
                text = f"health is asked by TLS at port {port.raw.value}, where ours is plaintext: it never counts as "
                text += "healthy, and no decision is ever made"
                yield warning(port.place, text, "remove health_check_config: health is on the gRPC port too, by TLS")


def weights(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Envoy's weights and zones say who gets more requests; ours go where the load is least."""
    advice = "remove it, or leave this cluster to Envoy; priorities are obeyed"
    for cluster in _pools(topology, pools):
        name = cluster.message.name
        for locality in cluster.node.every("load_assignment", "endpoints"):
            for node in (locality, *locality.every("lb_endpoints")):
                weight = node.get("load_balancing_weight")
                if weight is not None and str(weight.raw.value) != "1":
                    text = f"{name}: load_balancing_weight is not used: requests go where the load is least"
                    yield warning(weight.place, text, advice)
        for key in ("zone_aware_lb_config", "locality_weighted_lb_config"):
            config = cluster.node.get("common_lb_config", key)
            if config is not None:
                yield warning(config.place, f"{name}: {key} is not used: every zone gets requests by its load", advice)


def _pools(topology: Topology, pools: Pools) -> Iterator[Located[Cluster]]:
    return (topology.clusters[name] for name in pools)


def _limits(cluster: Located[Cluster], names: tuple[str, ...], text: str) -> Iterator[Problem]:
    for index, limits in _thresholds(cluster):
        low = {name: getattr(limits, name) or DEFAULT_LIMIT for name in names}
        low = {name: limit for name, limit in low.items() if limit <= DEFAULT_LIMIT}
        if low:
            place = cluster.node.near("circuit_breakers", "thresholds", index).place
            message = text.format(name=cluster.message.name, limits=", ".join(low), limit=min(low.values()))
            yield warning(place, message, _ADVICE % ", ".join(f"{name}: 100000" for name in low))


def _thresholds(cluster: Located[Cluster]) -> Iterator[tuple[int, CircuitBreakersThresholds]]:
    """The limits of the default priority, which requests have; Envoy's own where none are written."""
    breakers = cluster.message.circuit_breakers
    written = [
        (index, limits)
        for index, limits in enumerate(breakers.thresholds if breakers else ())
        if limits.priority is RoutingPriority.DEFAULT
    ]
    yield written[0] if written else (0, CircuitBreakersThresholds())


def _servers(topology: Topology) -> Iterator[str]:
    """The clusters of ext_proc servers."""
    for _, message in filters(topology):
        envoy_grpc = message.grpc_service.envoy_grpc if message.grpc_service else None
        if envoy_grpc is not None and envoy_grpc.cluster_name in topology.clusters:
            yield envoy_grpc.cluster_name


def _upstream(cluster: Located[Cluster], *fields: str) -> Located[HttpProtocolOptions] | None:
    node = cluster.node.get("typed_extension_protocol_options", UPSTREAM)
    return None if node is None else read(HttpProtocolOptions, node, [], *fields)


def _speaks_http2(cluster: Located[Cluster]) -> bool:
    if cluster.message.http2_protocol_options is not None:
        return True
    found = _upstream(cluster, "explicit_http_config", "auto_config")
    if found is None:
        return False
    options = found.message
    explicit = options.explicit_http_config
    if explicit is not None:
        return explicit.http2_protocol_options is not None or explicit.http3_protocol_options is not None
    return options.auto_config is not None  # ALPN decides


CHECKS: Final = (
    obeys,
    has_endpoints,
    both_halves,
    weights,
    pool_limits,
    retry_limit,
    stream_durations,
    extproc_cluster,
    health_by_tls,
)
