"""Parts of a configuration that several checks look at."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Final

from extproc.config.envoy_types import (
    Cluster,
    ExternalProcessor,
    ExtProcOverrides,
    HeaderMutation,
    Located,
    OverrideHost,
    ProcessingMode,
    read,
)
from extproc.config.nodes import Node
from extproc.config.settings import PoolSettings
from extproc.config.topology import Chain, RouteEntry, Topology

Pools = Mapping[str, PoolSettings]

REPLY = timedelta(minutes=5)  # a long reply, streamed

OVERRIDE_HOST: Final = "envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost"
OVERRIDE_POLICY: Final = ("load_balancing_policy", "policies", 0, "typed_extension_config", "typed_config")
HEADER_MUTATION: Final = "envoy.extensions.filters.http.header_mutation.v3.HeaderMutation"


def filters(topology: Topology) -> Iterator[tuple[Node, ExternalProcessor]]:
    """Every ext_proc filter of ours."""
    for chain in topology.chains:
        yield chain.filter.node, chain.filter.message


def overrides(topology: Topology) -> Iterator[tuple[Chain, Located[ExtProcOverrides]]]:
    """Every per-route change of such a filter."""
    for chain in topology.chains:
        for route in chain.routes:
            for override in route.overrides:
                yield chain, override


def modes(topology: Topology) -> Iterator[tuple[ProcessingMode, Node, bool]]:
    """Every processing mode in use, where it is (or would be) written, and whether the filter is asked to fail open."""
    for node, message in filters(topology):
        yield message.processing_mode or ProcessingMode(), node.near("processing_mode"), message.failure_mode_allow
    for chain, override in overrides(topology):
        mode = override.message.processing_mode
        if mode is not None:
            own = override.message.failure_mode_allow
            allow = chain.filter.message.failure_mode_allow if own is None else own
            yield mode, override.node.near("processing_mode"), allow


def routes_to_pools(topology: Topology) -> Iterator[tuple[Chain, RouteEntry]]:
    """The routes on which ext_proc decides and that lead to one of the pools, or to where a request's header says."""
    return ((chain, route) for chain, route in topology.pool_routes() if not route.foreign)


def modes_of(chain: Chain) -> Iterator[tuple[ProcessingMode, Node]]:
    """The processing modes in use behind one filter, and where each is (or would be) written."""
    yield chain.filter.message.processing_mode or ProcessingMode(), chain.filter.node.near("processing_mode")
    for override in (override for route in chain.routes for override in route.overrides):
        if override.message.processing_mode is not None:
            yield override.message.processing_mode, override.node.near("processing_mode")


def pools_behind(chain: Chain, topology: Topology) -> list[Located[Cluster]]:
    """The clusters that one filter decides for."""
    names = dict.fromkeys(name for route in chain.routes for name in route.pools)
    return [topology.clusters[name] for name in names if name in topology.clusters]


def override_host(cluster: Located[Cluster]) -> Located[OverrideHost] | None:
    """The load-balancing policy that obeys us, if the cluster uses it: Envoy takes the first of a list."""
    policy = cluster.node.get(*OVERRIDE_POLICY)
    if policy is None or policy.type_name != OVERRIDE_HOST:
        return None
    return read(OverrideHost, policy, [], "override_host_sources", "selected_host_key")


def removed_before(chain: Chain) -> frozenset[str]:
    """The request headers (lower case) that header_mutation filters remove before ours sees them."""
    removed: set[str] = set()
    for http_filter in chain.filters[: chain.position]:
        for node in http_filter.find(HEADER_MUTATION):
            mutations = read(HeaderMutation, node, [], "mutations").message.mutations
            requests = mutations.request_mutations if mutations else ()
            removed.update(mutation.remove.lower() for mutation in requests if mutation.remove)
    return frozenset(removed)


def matches(pattern: str, text: str) -> bool:
    """Whether an expression (RE2, matched whole) fits; one that Python cannot read counts as not fitting."""
    try:
        return re.fullmatch(pattern, text) is not None
    except re.error:
        return False


def shown(duration: timedelta) -> str:
    """A duration as Envoy's YAML writes it."""
    return f"{duration.total_seconds():g}s"
