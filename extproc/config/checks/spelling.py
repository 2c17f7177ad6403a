"""Checks of names that Envoy itself would refuse: types of messages, and fields within those that are about us.

They make Envoy stop at its start, which is late to learn of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Final

from extproc.config.checks.shared import OVERRIDE_HOST, OVERRIDE_POLICY, Pools
from extproc.config.envoy_types import ExternalProcessor, ExtProcPerRoute, OverrideHost, unknown_fields
from extproc.config.nodes import Node, snake_case
from extproc.config.report import Problem, error, warning
from extproc.config.topology import EXT_PROC, FILTER_CONFIG, HCM, Chain, Topology

PER_ROUTE: Final = "envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
URL: Final = "type.googleapis.com/"
_FULL: Final = {name.rpartition(".")[2]: name for name in (EXT_PROC, PER_ROUTE, HCM, FILTER_CONFIG, OVERRIDE_HOST)}

# A field that resembles a known one this much is misspelt; any other may be from a newer Envoy than our types.
_MISSPELT = 0.8


def type_urls(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """A message's type is a URL; Envoy refuses a name alone, and an abbreviated one."""
    for node in _types(topology.document):
        written = str(node.raw.value)
        if "/" not in written:
            name = _FULL.get(written.rpartition(".")[2], "FULL.NAME.OF.THE.MESSAGE")
            yield error(node.place, f"{written!r} is no type URL: Envoy refuses it", f"write {URL}{name}")


def per_route_type(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """What changes our filter on a route is of one type."""
    for chain in topology.chains:
        for node in _per_route(chain):
            url = node.get("@type")
            if node.type_name != PER_ROUTE and (url is None or "/" in str(url.raw.value)):
                found = f"{node.type_name} is not what changes an ext_proc filter" if url else "@type is missing"
                text = f"{found}: Envoy refuses it, and nothing here is read"
                yield error(node.near("@type").place, text, f'write "@type": {URL}{PER_ROUTE}')


def fields(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Every key within our filter, its changes on routes, and the policy that obeys us is a field of Envoy's."""
    found = [unknown for chain in topology.chains for unknown in unknown_fields(ExternalProcessor, chain.filter.node)]
    for node in (node for chain in topology.chains for node in _per_route(chain)):
        found += unknown_fields(ExtProcPerRoute, node) if node.type_name == PER_ROUTE else ()
    for policy in (topology.clusters[name].node.get(*OVERRIDE_POLICY) for name in pools):
        if policy is not None and policy.type_name == OVERRIDE_HOST:
            found += unknown_fields(OverrideHost, policy)
    for one in found:
        text = f"{one.message} has no field {one.key!r}"
        close = difflib.get_close_matches(snake_case(one.key)[:80], one.fields, n=1, cutoff=_MISSPELT)
        if close:
            yield error(one.node.place, f"{text}, and Envoy refuses what it does not know", f"did you mean {close[0]}?")
        else:
            text += " that we know of; an Envoy that does not know it either refuses to start"
            yield warning(one.node.place, text, f"known are {', '.join(one.fields)}")


def _types(node: Node) -> Iterator[Node]:
    for key, child in node.entries():
        if key == "@type":
            yield child
        elif snake_case(key) != "filter_metadata":  # whose keys are anybody's
            yield from _types(child)
    for item in node.items():
        yield from _types(item)


def _per_route(chain: Chain) -> Iterator[Node]:
    """Every change of the chain's filter on a route table, virtual host, route or weighted cluster."""
    name = chain.filters[chain.position].get("name")
    for table in chain.manager.node.every("route_config") if name is not None else ():
        hosts, routes = ("virtual_hosts",), ("virtual_hosts", "routes")
        weights = (*routes, "route", "weighted_clusters", "clusters")
        for level in (node for steps in ((), hosts, routes, weights) for node in table.every(*steps)):
            node = level.get("typed_per_filter_config", str(name.raw.value) if name is not None else "")
            if node is not None and node.type_name == FILTER_CONFIG:
                node = node.get("config")
            if node is not None:
                yield node


CHECKS: Final = (type_urls, per_route_type, fields)
