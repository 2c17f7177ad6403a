"""A pool from its Envoy cluster: cluster type, endpoints, and the metadata under `smetric` on both.

`eds_endpoints` reads an EDS file by the rules of the main file; discovery calls it again when the file is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from extproc.base import blocks
from extproc.base.model import Engine, Role, Source
from extproc.config import nodes
from extproc.config.envoy_types import (
    Cluster,
    ClusterDiscoveryType,
    DnsCluster,
    HealthStatus,
    LbEndpoint,
    LocalityLbEndpoints,
    Located,
    read,
)
from extproc.config.health_check import health_check
from extproc.config.metadata import CLUSTER_KEYS, ENDPOINT_KEYS, PACE_KEYS, Fields
from extproc.config.nodes import Node
from extproc.config.report import Problem, error, warning
from extproc.config.settings import DNS_REFRESH_S, Discovery, DnsFamily, Endpoint, PoolSettings
from extproc.config.topology import smetric
from extproc.routing.pace import Given

DNS_CLUSTER = "envoy.extensions.clusters.dns.v3.DnsCluster"
ASSIGNMENT = "envoy.config.endpoint.v3.ClusterLoadAssignment"

# Below 16 bytes the keys outweigh the text; above 64 KiB hardly any prompt has a whole block.
BLOCK_BYTES = (16, 65536)
MAX_RANKS = 1024
_AWAY = frozenset({HealthStatus.UNHEALTHY, HealthStatus.DRAINING, HealthStatus.TIMEOUT})
_UNFOLLOWED = {
    ClusterDiscoveryType.LOGICAL_DNS: (
        "a LOGICAL_DNS cluster is a single host to Envoy, whatever its name resolves to",
        "write type: STRICT_DNS: each address becomes an instance",
    ),
    ClusterDiscoveryType.ORIGINAL_DST: (
        "an ORIGINAL_DST cluster has no endpoints to choose from",
        "write type: STRICT_DNS, STATIC or EDS (from a file)",
    ),
}


def read_pool(cluster: Located[Cluster], base: Path, problems: list[Problem]) -> PoolSettings | None:
    """The pool behind a cluster; None, after reporting why, where we cannot follow its type.

    `base` is the directory that relative paths start from.
    """
    message, node = cluster.message, cluster.node
    discovery, refresh_s, family = _discovery(cluster, problems)
    if discovery is None:
        return None
    eds_path = None
    service = node.get("eds_cluster_config", "service_name")
    eds_service = message.name if service is None else str(service.raw.value)
    if discovery is Discovery.EDS:
        eds_path = _eds_path(node, base, problems)
        if eds_path is None:
            return None
        found = _eds_at_start(eds_path, eds_service, node, problems)
    else:
        found = endpoints(node.get("load_assignment"), problems)
        if discovery is Discovery.STATIC:
            _are_addresses(found, node, problems)

    fields = Fields(smetric(node), CLUSTER_KEYS, problems)
    model_dir = fields.text("model_dir")
    return PoolSettings(
        name=message.name,
        discovery=discovery,
        endpoints=found,
        eds_path=eds_path,
        eds_service=eds_service,
        dns_refresh_s=refresh_s,
        dns_family=family,
        model_dir=(base / model_dir).resolve() if model_dir else None,
        models=fields.texts("models"),
        prompt_block_bytes=fields.integer("prompt_block_bytes", *BLOCK_BYTES, default=blocks.DEFAULT_SIZE),
        engine=fields.word("engine", Engine) or Engine.VLLM,
        source=fields.word("source", Source) or _default_source(model_dir, discovery, found),
        health_check=health_check(node, problems),
        pace=_pace(fields),
        tls=speaks_tls(node),
    )


def _pace(fields: Fields) -> Given:
    byte_us, depth, fetch_us = map(fields.above_nothing, PACE_KEYS)
    return Given(byte_us and byte_us / 1e6, depth, fetch_us and fetch_us / 1e6)


def speaks_tls(cluster: Node) -> bool:
    """Whether Envoy speaks TLS to a cluster's hosts."""
    config = cluster.get("transport_socket", "typed_config")
    return config is not None and config.type_name.endswith("UpstreamTlsContext")


def _default_source(model_dir: str | None, discovery: Discovery, found: tuple[Endpoint, ...]) -> Source:
    """Events where there are model files to read them with and engines that publish them (or may, once EDS has any)."""
    publishing = any(endpoint.kv_events for endpoint in found) or (discovery is Discovery.EDS and not found)
    return Source.EVENTS if model_dir and publishing else Source.ROUTED


def endpoints(assignment: Node | None, problems: list[Problem]) -> tuple[Endpoint, ...]:
    """The endpoints of a ClusterLoadAssignment that Envoy would send requests to."""
    found: list[Endpoint] = []
    for locality in assignment.every("endpoints") if assignment is not None else ():
        priority = read(LocalityLbEndpoints, locality, problems, "priority").message.priority
        found += (replace(endpoint, priority=priority) for endpoint in _lb_endpoints(locality, problems))
    return tuple(found)


def _lb_endpoints(locality: Node, problems: list[Problem]) -> Iterator[Endpoint]:
    for node in locality.every("lb_endpoints"):
        message = read(LbEndpoint, node, problems, "endpoint", "health_status").message
        if message.health_status in _AWAY:
            continue
        address = message.endpoint.address.socket_address if message.endpoint and message.endpoint.address else None
        if address is None or not address.address or not address.port_value:
            place = node.near("endpoint", "address", "socket_address").place
            advice = "write endpoint: {address: {socket_address: {address: HOST, port_value: PORT}}}"
            problems.append(error(place, "an instance needs an address and a port", advice))
            continue
        fields = Fields(smetric(node), ENDPOINT_KEYS, problems)
        ranks = fields.integer("data_parallel_size", 1, MAX_RANKS, default=1)
        yield Endpoint(
            host=address.address,
            port=address.port_value,
            kv_events=fields.zmq("kv_events", ranks, may_listen=True),
            kv_replay=fields.zmq("kv_replay", ranks),
            role=fields.word("role", Role) or Role.BOTH,
            data_parallel_size=ranks,
        )


def eds_endpoints(path: Path, service: str, problems: list[Problem]) -> tuple[Endpoint, ...]:
    """The endpoints that an EDS file (a DiscoveryResponse) gives a cluster.

    Raises OSError or nodes.Malformed.
    """
    document = nodes.read(path)
    named = {}
    for assignment in document.find(ASSIGNMENT):
        name = assignment.get("cluster_name")
        named[str(name.raw.value) if name is not None else ""] = assignment
    if service not in named:
        advice = f"write under resources: {{'@type': type.googleapis.com/{ASSIGNMENT}, cluster_name: {service}, ...}}"
        problems.append(error(document.place, f"no resource is for the cluster {service}", advice))
        return ()
    return endpoints(named[service], problems)


def _discovery(cluster: Located[Cluster], problems: list[Problem]) -> tuple[Discovery | None, float, DnsFamily]:
    message, node = cluster.message, cluster.node
    refresh = message.dns_refresh_rate
    family = message.dns_lookup_family.name
    custom = node.get("cluster_type", "typed_config")
    kind = message.type or ClusterDiscoveryType.STATIC
    unfollowed = _UNFOLLOWED.get(kind)
    if custom is not None and custom.type_name == DNS_CLUSTER:
        dns = read(DnsCluster, custom, problems).message
        refresh, kind = dns.dns_refresh_rate, ClusterDiscoveryType.STRICT_DNS
        family = dns.dns_lookup_family.name
        if dns.all_addresses_in_single_endpoint:
            unfollowed = _UNFOLLOWED[ClusterDiscoveryType.LOGICAL_DNS]
    elif node.get("cluster_type") is not None or (kind.name not in Discovery.__members__ and unfollowed is None):
        unfollowed = ("its hosts come in a way that we cannot follow", "write type: STRICT_DNS, STATIC or EDS")
    if unfollowed is not None:
        place = node.near("cluster_type" if node.get("cluster_type") else "type").place
        problems.append(error(place, f"{message.name}: {unfollowed[0]}", unfollowed[1]))
        return None, DNS_REFRESH_S, DnsFamily.AUTO
    refresh_s = refresh.total_seconds() if refresh else DNS_REFRESH_S
    # UNSPECIFIED is the DNS cluster extension's word for AUTO.
    return Discovery(kind.name), refresh_s, DnsFamily.__members__.get(family or "", DnsFamily.AUTO)


def _eds_path(node: Node, base: Path, problems: list[Problem]) -> Path | None:
    config = node.get("eds_cluster_config", "eds_config")
    path = None
    if config is not None:
        path = config.get("path_config_source", "path") or config.get("path")
    if path is None:
        place = node.near("eds_cluster_config", "eds_config").place
        message = "its endpoints come over xDS, which we do not speak"
        advice = "write eds_config: {path_config_source: {path: FILE}}, or STRICT_DNS with a headless service's name"
        problems.append(error(place, message, advice))
        return None
    written = Path(str(path.raw.value))
    # Envoy starts a relative path at its working directory, which we do not know: the YAML's is more likely than ours.
    beside = base / written
    return beside if written.is_absolute() or beside.exists() or not written.exists() else written


def _eds_at_start(path: Path, service: str, node: Node, problems: list[Problem]) -> tuple[Endpoint, ...]:
    try:
        return eds_endpoints(path, service, problems)
    except (OSError, nodes.Malformed) as reason:
        place = node.near("eds_cluster_config", "eds_config").place
        advice = "until it can be read the pool has no instances, and requests are answered with 503"
        problems.append(warning(place, f"the EDS file {path} cannot be used: {reason}", advice))
        return ()


def _are_addresses(found: tuple[Endpoint, ...], node: Node, problems: list[Problem]) -> None:
    for endpoint in found:
        try:
            ip_address(endpoint.host)
        except ValueError:
            place = node.near("type").place
            message = f"{endpoint.host} is a name, and a STATIC cluster has IP addresses only"
            problems.append(error(place, message, "write type: STRICT_DNS"))
            return
