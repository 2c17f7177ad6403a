"""Checks of the routes to a pool: what they ask of us, how long they wait, how they retry."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from extproc.base.errors import ConfigError
from extproc.base.headers import TOKEN
from extproc.config.checks.shared import REPLY, Pools, routes_to_pools, shown
from extproc.config.checks.substitutions import commands
from extproc.config.envoy_types import RouteAction
from extproc.config.nodes import Node
from extproc.config.report import Problem, error, warning
from extproc.config.topology import Header, Topology
from extproc.routing.route_settings import (
    CLUSTER,
    DISAGGREGATION,
    MAX_BODY,
    MAX_LOAD,
    POLICY,
    PREFILL_TIMEOUT,
    PREFIX,
    SHADOW,
    cluster_names,
    known_mode,
    known_option,
    known_policies,
    known_policy,
    option_value,
    prefill_timeout,
    suggest,
)

PER_ROUTE = "envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
DEFAULT_TIMEOUT = timedelta(seconds=15)  # Envoy's
FALLBACKS = 2  # in the answer, beside the choice
RETRY_ON = "connect-failure,refused-stream,reset"
# One of these makes Envoy retry a request whose host went away before the response's headers.
_DIED = frozenset({"reset", "5xx", "gateway-error"})
_OF_REQUEST = frozenset({"REQ", "REQUEST_HEADER", "QUERY_PARAM", "QUERY_PARAMS", "PATH"})
# Values that are numbers but likely mistakes: a ratio above 1, a factor below 1.
_USUAL = {
    "x-smetric-hit-ratio": (0.0, 1.0),
    "x-smetric-overload": (1.0, 100.0),
    MAX_LOAD: (1.0, 1e6),
    MAX_BODY: (65_536.0, 1e9),
}


def asks(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Every `x-smetric-*` entry is known and has a value that can be used."""
    for chain in topology.chains:
        for metadata in (chain.metadata, *(route.metadata for route in chain.routes)):
            for key, header in metadata.items():
                yield from commands(key, header)
                if key.startswith(PREFIX) and not header.malformed:
                    yield from entry(key, header, topology)


def goes_to_pool(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """A destination outside the route's cluster is ignored, and each of its requests asks for one all the same."""
    for _, route in topology.pool_routes():
        known = [name for name in route.pools if name in topology.clusters]
        if route.foreign and known:
            names = " or ".join(known)
            text = f"the route goes to {route.cluster}, and ext_proc decides for {names}: Envoy ignores the decision, "
            text += f"and {names} counts a load that it does not have"
            advice = "switch the filter off here: typed_per_filter_config: {NAME_OF_THE_FILTER: {'@type': "
            advice += f"type.googleapis.com/{PER_ROUTE}, disabled: true}}}}; or write cluster: {names}"
            yield warning(route.route.node.near("route").place, text, advice)


def timeout(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Envoy's route timeout runs until the end of the reply."""
    for node, message in _actions(topology):
        limit, default = message.timeout, " (the default)" if message.timeout is None else ""
        limit = DEFAULT_TIMEOUT if limit is None else limit
        if timedelta(0) < limit < REPLY:
            text = f"a reply that takes longer than {shown(limit)}{default} is cut off"
            yield warning(node.near("timeout").place, text, "write timeout: 0s")
        longest = message.max_stream_duration.max_stream_duration if message.max_stream_duration else None
        if longest is not None and timedelta(0) < longest < REPLY:
            place = node.near("max_stream_duration", "max_stream_duration").place
            yield warning(place, f"a reply that takes longer than {shown(longest)} is cut off", "write 0s")
        idle = message.idle_timeout
        if idle is not None and timedelta(0) < idle < REPLY:
            text = f"a request that waits longer than {shown(idle)} for its first token is cut off"
            yield warning(node.near("idle_timeout").place, text, "write idle_timeout: 3600s")


def retries(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """A request moves to a fallback when its instance is down or dies, as often as there are fallbacks."""
    for _, route in routes_to_pools(topology):
        own = route.route.message.route
        node, policy = route.route.node.near("route", "retry_policy"), own.retry_policy if own else None
        if policy is None:
            policy = route.virtual_host.message.retry_policy
            node = route.virtual_host.node.near("retry_policy") if policy else node
        if policy is None:
            text = "no retry_policy: a request whose instance is down or dies is lost, though others could serve it"
            advice = f"write retry_policy: {{retry_on: '{RETRY_ON}', num_retries: {FALLBACKS}}}"
            yield warning(node.place, text, advice)
            continue
        causes = frozenset(cause.strip() for cause in policy.retry_on.split(","))
        if not causes & _DIED:
            missing = [] if "connect-failure" in causes else ["that is down"]
            missing.append("that dies before its response's headers")
            text = f"retry_on does not cover an instance {' or one '.join(missing)}: its requests are lost"
            yield warning(node.near("retry_on").place, text, f"write retry_on: {RETRY_ON}")
        count = 1 if policy.num_retries is None else policy.num_retries
        if count < FALLBACKS:
            text = f"num_retries is {count}: the answer names {FALLBACKS} fallbacks, and the last ones are never tried"
            yield warning(node.near("num_retries").place, text, f"write num_retries: {FALLBACKS}")
        per_try = policy.per_try_timeout
        if per_try is not None and timedelta(0) < per_try < REPLY:
            text = f"per_try_timeout {shown(per_try)}: a slow reply is started again elsewhere, which doubles the load"
            yield warning(node.near("per_try_timeout").place, text, "remove per_try_timeout")


def visible(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Routes that come over RDS are not in the file."""
    for chain in topology.chains:
        for key in ("rds", "scoped_routes"):
            node = chain.manager.node.get(key)
            if node is not None:
                text = f"routes that come by {key} are not seen: neither their x-smetric-* nor retries are checked"
                yield warning(node.place, text, "write route_config here to have it checked")


def entry(key: str, header: Header, topology: Topology) -> Iterator[Problem]:
    """One entry of a route's metadata: a known key, and a value that can be used."""
    place, value = header.node.place, header.value
    if key == TOKEN:
        if _OF_REQUEST & set(header.commands):
            yield error(
                place, f"{key} comes from the request: any client can show it", "write it out, or %ENVIRONMENT(NAME)%"
            )
        return
    if header.dynamic and key in (CLUSTER, POLICY):
        yield warning(place, f"{key} comes from the request: a client can choose it", "write a fixed value")
    if header.dynamic:
        return
    if key == CLUSTER:
        for name in cluster_names(value) or (value,):
            if name not in topology.clusters:
                advice = "write the name of one of static_resources.clusters"
                yield error(place, f"no cluster {name!r} here: {suggest(name, topology.clusters)}", advice)
        return
    try:
        if key in (POLICY, SHADOW):
            known_policies(value) if key == SHADOW else known_policy(value)
            return
        if key == DISAGGREGATION:
            known_mode(value)
            return
        if key == PREFILL_TIMEOUT:
            prefill_timeout(value)
        elif key not in (MAX_BODY, MAX_LOAD):
            known_option(key)
        number = option_value(key, value)
    except ConfigError as reason:
        yield error(place, str(reason), "see docs/configuration.md for keys and values")
        return
    low, high = _USUAL.get(key, (number, number))
    if not low <= number <= high:
        yield warning(place, f"{key} is {value}, which is hardly meant", f"write a number from {low:g} to {high:g}")


def _actions(topology: Topology) -> Iterator[tuple[Node, RouteAction]]:
    for _, route in routes_to_pools(topology):
        action = route.route.message.route
        if action is not None:
            yield route.route.node.near("route"), action


CHECKS: Final = (asks, goes_to_pool, timeout, retries, visible)
