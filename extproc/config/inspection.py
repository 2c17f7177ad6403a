"""Reading a whole Envoy YAML: its tree, its parts, the pools, every check, and at last the settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from extproc.config import nodes, standalone, topology
from extproc.config.checks import CHECKS, POOL_CHECKS
from extproc.config.envoy_limits import gateway
from extproc.config.envoy_types import LbEndpoint, read
from extproc.config.pools import read_pool, speaks_tls
from extproc.config.report import Problem, Report, Server, Severity, error
from extproc.config.settings import Settings
from extproc.config.topology import Header, Topology
from extproc.routing.route_settings import CLUSTER, RouteSettings, route_settings


def inspect(path: Path) -> Report:
    """An Envoy YAML's settings, unless there are errors, and every problem.

    Raises OSError where the file cannot be read, and nothing else.
    """
    problems: list[Problem] = []
    try:
        document = nodes.read(path)
    except nodes.Malformed as reason:
        advice = "run `envoy --mode validate -c FILE` for Envoy's own words"
        problems.append(error(f"{path}:{reason.line}", f"this is not YAML that can be used: {reason}", advice))
        return Report(path, None, tuple(problems))

    found = topology.follow(document, problems)
    base = path.parent.resolve()  # where the operator sees the file: a ConfigMap's is a link into a hidden directory
    known = {name: read_pool(found.clusters[name], base, problems) for name in found.pools()}
    pools = {name: pool for name, pool in known.items() if pool is not None}
    alone = standalone.applies(document)
    # What was refused is missing from the settings; reporting that too would hide the mistake.
    pool_checks = () if problems else POOL_CHECKS
    for check in pool_checks if alone else (*pool_checks, *CHECKS):
        problems.extend(check(found, pools))
    if alone:
        standalone.judge(found, pools, problems)

    distinct = tuple(dict.fromkeys(problems))
    if any(problem.severity is Severity.ERROR for problem in distinct):
        return Report(path, None, distinct)
    default = standalone.default(found) if alone else _default(found)
    settings = Settings(path, pools, default, standalone=alone, gateway=gateway(found))
    return Report(path, settings, distinct, tuple(_routes(found, settings)), tuple(dict.fromkeys(_servers(found))))


def _default(found: Topology) -> RouteSettings | None:
    metadata = found.chains[0].metadata
    return route_settings(_fixed(metadata), None) if CLUSTER in metadata else None


def _routes(found: Topology, settings: Settings) -> list[tuple[str, RouteSettings]]:
    return [(route.name, route_settings(_fixed(route.metadata), None)) for _, route in found.pool_routes()]


def _servers(found: Topology) -> Iterator[Server]:
    for chain in found.chains:
        name = chain.filter.node.get("grpc_service", "envoy_grpc", "cluster_name")
        cluster = found.clusters.get(str(name.raw.value)) if name is not None else None
        for node in cluster.node.every("load_assignment", "endpoints", "lb_endpoints") if cluster else ():
            endpoint = read(LbEndpoint, node, [], "endpoint").message.endpoint
            address = endpoint.address.socket_address if endpoint and endpoint.address else None
            if cluster is None or endpoint is None or address is None or not address.port_value:
                continue
            yield Server(address.address, address.port_value, speaks_tls(cluster.node))
            health = endpoint.health_check_config
            if health is not None and health.port_value:
                yield Server(address.address, health.port_value, tls=False, health_only=True)


def _fixed(metadata: Mapping[str, Header]) -> dict[str, str]:
    return {key: header.value for key, header in metadata.items() if not header.dynamic}
