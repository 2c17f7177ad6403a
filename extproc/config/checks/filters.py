"""Checks of the ext_proc filter: whether it is there, reaches us, and obeys the answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from extproc.base.headers import DESTINATION, EXPLANATION, NAMESPACE
from extproc.config.checks.shared import Pools, filters, matches, modes_of, override_host, pools_behind
from extproc.config.envoy_types import ProcessingModeBodySendMode as Body
from extproc.config.nodes import Node
from extproc.config.report import Problem, error, warning
from extproc.config.topology import RouteEntry, Topology
from extproc.routing.route_settings import CLUSTER

DECOMPRESSOR: Final = "envoy.extensions.filters.http.decompressor.v3.Decompressor"


def exists(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """An ext_proc filter of ours must be there at all."""
    if topology.chains:
        return
    dynamic = topology.document.get("dynamic_resources")
    if dynamic is not None:
        message = "no ext_proc filter names x-smetric-cluster here; what comes by xDS cannot be checked or followed"
        advice = "give a file with static_resources"
    else:
        message = "no ext_proc filter names x-smetric-cluster in its grpc_service.initial_metadata"
        advice = "add the filter of docs/drop-into-your-envoy.md to the http_filters, before the router"
    yield error(topology.document.near("static_resources", "listeners").place, message, advice)


def has_pool(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """The filter, or each route behind it, names the pool."""
    for chain in topology.chains:
        if CLUSTER in chain.metadata or any(route.pools for route in chain.routes):
            continue
        names = topology.pools()
        advice = f"write initial_metadata: [{{key: x-smetric-cluster, value: {names[0] if names else 'CLUSTER'}}}]"
        place = chain.filter.node.near("grpc_service", "initial_metadata").place
        yield error(place, "neither the filter nor a route says which cluster is the pool", advice)


def speaks_grpc(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Only the gRPC variant carries bodies and dynamic metadata as we need them."""
    for node, message in filters(topology):
        if message.grpc_service is None and node.get("grpc_service") is None:
            advice = "write grpc_service: {envoy_grpc: {cluster_name: CLUSTER_OF_EXTPROC}}"
            yield error(node.near("http_service").place, "the filter has no grpc_service", advice)


def decides_once(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Each filter of ours asks for a decision of its own; the last one's counts, and all of them are loads."""
    managers = [chain.manager.node.place for chain in topology.chains]
    for index, chain in enumerate(topology.chains):
        if chain.manager.node.place in managers[:index]:
            text = "a second ext_proc filter of ours in one chain: every request is decided and counted twice"
            yield warning(chain.filters[chain.position].place, text, "remove one of them")


def decompressed(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """A body must be decompressed before we see it, and in one mode Envoy then sends it twice."""
    for chain in topology.chains:
        streams = any(mode.request_body_mode is Body.FULL_DUPLEX_STREAMED for mode, _ in modes_of(chain))
        for position, http_filter in enumerate(chain.filters):
            if not any(_decompresses(node) for node in http_filter.find(DECOMPRESSOR)):
                continue
            if position > chain.position:
                text = "bodies that clients compress are decompressed after we see them: load alone decides"
                yield warning(http_filter.place, text, "put the decompressor before ext_proc")
            elif streams and any(_retries(route) for _, route in topology.pool_routes() if route in chain.routes):
                text = (
                    "with FULL_DUPLEX_STREAMED and a retry_policy Envoy sends a body that it decompressed twice, and "
                )
                text += "engines answer with 400"
                yield warning(http_filter.place, text, "write request_body_mode: BUFFERED, or remove the retry_policy")


def decides(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """In observability mode Envoy ignores every answer."""
    for node, message in filters(topology):
        if message.observability_mode:
            text = "observability_mode: Envoy ignores the answers, so that no decision has an effect"
            yield error(node.near("observability_mode").place, text, "remove observability_mode")


def receives_metadata(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Envoy drops dynamic metadata of a namespace that is not listed."""
    for node, message in filters(topology):
        options = message.metadata_options
        listed = options.receiving_namespaces.untyped if options and options.receiving_namespaces else []
        place = node.near("metadata_options", "receiving_namespaces", "untyped").place
        advice = "write metadata_options: {receiving_namespaces: {untyped: [envoy.lb, smetric]}}"
        if NAMESPACE not in listed:
            yield error(place, "envoy.lb is not received: Envoy drops the destination, and no decision counts", advice)
        elif EXPLANATION not in listed:
            yield warning(place, "smetric is not received: the access log cannot show decisions", advice)


def sees_server(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """A dead instance is ejected once the router sees that another one answered."""
    for chain in topology.chains:
        message = chain.filter.message
        options = message.metadata_options
        forwarded = options.forwarding_namespaces.untyped if options and options.forwarding_namespaces else []
        if "upstream.address" in message.response_attributes:
            continue
        policies = [override_host(pool) for pool in pools_behind(chain, topology)]
        told = all(policy is None or policy.message.selected_host_key is not None for policy in policies)
        if NAMESPACE not in forwarded or not told:
            text = "after a retry we are not told which instance answered, and go on choosing the dead one"
            yield warning(chain.filter.node.place, text, "write response_attributes: [upstream.address]")


def mutation_rules(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Envoy must let us set the destination header, or at least not fail because of it."""
    for node, message in filters(topology):
        rules = message.mutation_rules
        if rules is None:
            continue
        forbidden, allowed = rules.disallow_expression, rules.allow_expression
        is_forbidden = forbidden is not None and matches(forbidden.regex, DESTINATION)
        is_allowed = allowed is not None and matches(allowed.regex, DESTINATION)
        # Measured: disallow_expression always wins, and allow_expression wins over disallow_all.
        if not is_forbidden and (is_allowed or not rules.disallow_all):
            continue
        advice = f"write allow_expression: {{regex: '{DESTINATION}|x-data-parallel-rank'}}, and forbid neither"
        place, text = node.near("mutation_rules").place, f"{DESTINATION} may not be set: "
        if rules.disallow_is_error:
            yield error(place, text + "every request is answered with 500", advice)
        else:
            yield warning(place, text + "a value that the client sent reaches the engine", advice)


def forward_rules(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """The path says which API a body is for."""
    for node, message in filters(topology):
        rules = message.forward_rules
        if rules is None:
            continue
        allowed = node.get("forward_rules", "allowed_headers", "patterns")
        denied = node.get("forward_rules", "disallowed_headers", "patterns")
        if (allowed is not None and not _lists(allowed, ":path")) or (denied is not None and _lists(denied, ":path")):
            text = "the :path header is not sent to us: no request's API is known, and load alone decides"
            yield warning(node.near("forward_rules").place, text, "allow :path and :method, or remove forward_rules")


def immediate_response(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Where no instance exists, we answer 503 with a JSON error."""
    for node, message in filters(topology):
        if message.disable_immediate_response:
            text = "disable_immediate_response: where the pool is empty our 503 cannot be sent"
            yield warning(node.near("disable_immediate_response").place, text, "remove disable_immediate_response")


def _decompresses(decompressor: Node) -> bool:
    """Whether it does so with requests: by default it does."""
    enabled = decompressor.get("request_direction_config", "common_config", "enabled", "default_value")
    return enabled is None or str(enabled.raw.value).lower() != "false"


def _retries(route: RouteEntry) -> bool:
    action = route.route.message.route
    return bool((action and action.retry_policy) or route.virtual_host.message.retry_policy)


def _lists(patterns: Node, header: str) -> bool:
    """Whether one of a list of string matchers fits the header."""
    for pattern in patterns.items():
        for kind, value in pattern.entries():
            text = str(value.raw.value)
            regex = value.get("regex")
            fits = {
                "exact": header == text,
                "prefix": header.startswith(text),
                "suffix": header.endswith(text),
                "contains": text in header,
                "safe_regex": regex is not None and matches(str(regex.raw.value), header),
            }
            if fits.get(kind):
                return True
    return False


CHECKS: Final = (
    exists,
    has_pool,
    speaks_grpc,
    decides_once,
    decompressed,
    decides,
    receives_metadata,
    sees_server,
    mutation_rules,
    forward_rules,
    immediate_response,
)
