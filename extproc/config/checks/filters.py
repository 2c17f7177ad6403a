"""Checks of the ext_proc filter, and of the listener and the HTTP connection manager around it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from extproc.config.checks.parts import (
    Pools,
    filters,
    matches,
    modes,
    override_host,
    overrides,
    pools_behind,
    removed_before,
    shown,
)
from extproc.config.messages import ProcessingModeBodySendMode as Body
from extproc.config.messages import ProcessingModeHeaderSendMode as Headers
from extproc.config.nodes import Node
from extproc.config.report import Problem, error, warning
from extproc.config.route import CLUSTER
from extproc.config.topology import RouteEntry, Topology
from extproc.routing import DESTINATION, NAMESPACE

BODY_BYTES = 32 * 1024 * 1024  # agents send 0.2-4 MB; with images, more
TIMEOUTS = (timedelta(milliseconds=250), timedelta(seconds=10))
IDLE = timedelta(minutes=5)  # Envoy's default


def exists(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """An ext_proc filter of ours must be there at all."""
    if topology.chains:
        return
    dynamic = topology.document.get("dynamic_resources")
    if dynamic is not None:
        message = "no ext_proc filter names x-smetric-cluster here; what comes by xDS cannot be checked or followed"
        advice = "check a file that holds the whole configuration: `curl ADMIN/config_dump` has the parts"
    else:
        message = "no ext_proc filter names x-smetric-cluster in its grpc_service.initial_metadata"
        advice = "add the filter of docs/drop-into-your-envoy.md to the http_filters, before the router"
    yield error(topology.document.near("static_resources", "listeners").place, message, advice)


def has_pool(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """The filter, or each route behind it, names the pool."""
    for chain in topology.chains:
        if CLUSTER in chain.metadata or any(route.pool for route in chain.routes):
            continue
        names = topology.pools()
        advice = f"write initial_metadata: [{{key: x-smetric-cluster, value: {names[0] if names else 'CLUSTER'}}}]"
        place = chain.filter.node.near("grpc_service", "initial_metadata").place
        yield error(place, "neither the filter nor a route says which cluster is the pool", advice)


def speaks_grpc(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Only the gRPC variant carries bodies and dynamic metadata as we need them."""
    for node, message in filters(topology):
        if message.grpc_service is None:
            advice = "write grpc_service: {envoy_grpc: {cluster_name: CLUSTER_OF_EXTPROC}}"
            yield error(node.near("http_service").place, "the filter has no grpc_service", advice)


def decides(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """In observability mode Envoy ignores every answer."""
    for node, message in filters(topology):
        if message.observability_mode:
            text = "observability_mode: Envoy ignores the answers, so that no decision has an effect"
            yield error(node.near("observability_mode").place, text, "remove observability_mode")


def fails_open(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Without ext_proc, requests should go on by the fallback policy."""
    for node, message in filters(topology):
        if not message.failure_mode_allow:
            text = "with ext_proc away or slow, every request is answered with 500 or 504"
            advice = "write failure_mode_allow: true: requests then go on by the fallback_policy"
            yield warning(node.near("failure_mode_allow").place, text, advice)
    for _, override in overrides(topology):
        if override.message.failure_mode_allow is False:
            text = "on this route a request fails where ext_proc is away"
            yield warning(override.node.near("failure_mode_allow").place, text, "write failure_mode_allow: true")


def request_headers(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """With the headers skipped, Envoy has chosen a host before the body arrives."""
    for mode, node, _ in modes(topology):
        if mode.request_header_mode is Headers.SKIP:
            text = "request_header_mode SKIP: Envoy has chosen the host before we see the body, and ignores our choice"
            yield error(node.near("request_header_mode").place, text, "write request_header_mode: SEND")


def request_body(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """The decision needs the whole body before the destination."""
    for mode, node, fails_open_here in modes(topology):
        place = node.near("request_body_mode").place
        name = mode.request_body_mode.name
        if mode.request_body_mode in (Body.NONE, Body.STREAMED):
            text = f"request_body_mode {name}: the destination is due before the body, so load alone decides"
            yield warning(place, text, "write request_body_mode: BUFFERED")
        elif mode.request_body_mode is Body.BUFFERED_PARTIAL:
            text = "BUFFERED_PARTIAL: a body above the buffer limit arrives cut off, and load alone decides"
            yield warning(place, text, "write request_body_mode: BUFFERED, with a buffer limit that is large enough")
        elif mode.request_body_mode is Body.FULL_DUPLEX_STREAMED and fails_open_here:
            text = (
                "FULL_DUPLEX_STREAMED does not fail open, whatever failure_mode_allow says: with ext_proc away every "
            )
            text += "POST is answered with 500"
            yield warning(place, text, "write request_body_mode: BUFFERED")
        elif mode.request_body_mode.name == "GRPC":
            yield error(place, "GRPC is for gRPC traffic", "write request_body_mode: BUFFERED")


def response_headers(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Response headers mark the end of the prefill and tell which host answered."""
    for mode, node, _ in modes(topology):
        if mode.response_header_mode is Headers.SKIP:
            text = "response_header_mode SKIP: neither the end of a prefill nor the host that answered is seen"
            yield warning(node.near("response_header_mode").place, text, "write response_header_mode: SEND")


def response_body(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """A response body that is sent to us costs each token a round trip, for nothing."""
    for mode, node, _ in modes(topology):
        if mode.response_body_mode is not Body.NONE:
            text = "the response body is not used; sending it costs every token a round trip"
            yield warning(node.near("response_body_mode").place, text, "write response_body_mode: NONE")


def message_timeout(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Long enough for the largest body, short enough for a router that hangs."""
    low, high = TIMEOUTS
    for node, message in filters(topology):
        timeout = message.message_timeout
        place = node.near("message_timeout").place
        if timeout is None or timeout < low:
            text = f"message_timeout is {shown(timeout or timedelta(milliseconds=200))}: a large body or a busy moment "
            text += "exceeds it, and the request then goes on without a decision"
            yield warning(
                place, f"{text}{'' if timeout is not None else ' (this is the default)'}", "write message_timeout: 1s"
            )
        elif timeout > high:
            text = f"message_timeout is {shown(timeout)}: should ext_proc hang, each request waits that long"
            yield warning(place, text, "write message_timeout: 1s")


def receives_metadata(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Envoy drops dynamic metadata of a namespace that is not listed."""
    for node, message in filters(topology):
        options = message.metadata_options
        listed = options.receiving_namespaces.untyped if options and options.receiving_namespaces else []
        place = node.near("metadata_options", "receiving_namespaces", "untyped").place
        advice = "write metadata_options: {receiving_namespaces: {untyped: [envoy.lb, smetric]}}"
        if NAMESPACE not in listed:
            yield error(
                place, "envoy.lb is not received: Envoy drops the destination and ignores every decision", advice
            )
        elif "smetric" not in listed:
            yield warning(place, "smetric is not received: the access log cannot show decisions", advice)


def sees_server(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """A dead instance is left alone once it is seen that another one answered."""
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
        refused = bool(rules.disallow_all)
        if rules.disallow_expression is not None and matches(rules.disallow_expression.regex, DESTINATION):
            refused = True
        allowed = rules.allow_expression is not None and matches(rules.allow_expression.regex, DESTINATION)
        if not refused or (allowed and not rules.disallow_all):
            continue
        advice = f"write allow_expression: {{regex: {DESTINATION}|x-data-parallel-rank}}, without disallow_all"
        place = node.near("mutation_rules").place
        if rules.disallow_is_error:
            yield error(place, f"{DESTINATION} may not be set: every request is answered with 500", advice)
        else:
            yield warning(
                place, f"{DESTINATION} may not be set: a value that the client sent reaches the engine", advice
            )


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


def buffer_limit(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """A body above the limit is answered with 413; agents resend their whole history."""
    for chain in topology.chains:
        limit = chain.listener.message.per_connection_buffer_limit_bytes
        if limit is not None and limit >= BODY_BYTES:
            continue
        if chain.routes and all(_own_limit(route) >= BODY_BYTES for route in chain.routes):
            continue
        size = f"{limit:,} bytes" if limit is not None else "1 MiB (the default)"
        text = f"request bodies above {size} are answered with 413 (Payload Too Large); agents send megabytes"
        advice = "write per_connection_buffer_limit_bytes: 67108864 in the listener (or in its routes, "
        advice += "request_body_buffer_limit)"
        yield warning(chain.listener.node.near("per_connection_buffer_limit_bytes").place, text, advice)


def idle_timeout(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """A request may wait in a queue, silent, for minutes."""
    for chain in topology.chains:
        timeout = chain.manager.message.stream_idle_timeout
        if timeout is not None and timedelta(0) < timeout < IDLE:
            text = (
                f"stream_idle_timeout is {shown(timeout)}: a request that waits longer for its first token is cut off"
            )
            yield warning(
                chain.manager.node.near("stream_idle_timeout").place, text, "write stream_idle_timeout: 3600s"
            )


def spoofed(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Where Envoy reads the destination from a header, a client can write it while ext_proc is away."""
    for chain in topology.chains:
        removed = removed_before(chain)
        for pool in pools_behind(chain, topology):
            policy = override_host(pool)
            for source in policy.message.override_host_sources if policy else ():
                if source.header and source.header.lower() not in removed:
                    name = source.header
                    text = (
                        f"{pool.message.name} reads {name}, which a client can send: without ext_proc it steers itself"
                    )
                    advice = (
                        f"put a header_mutation filter before ext_proc with request_mutations: [{{remove: {name}}}]"
                    )
                    yield warning(chain.filters[chain.position].place, text, advice)


def _own_limit(route: RouteEntry) -> int:
    own = route.route.message.request_body_buffer_limit
    return (route.virtual_host.message.request_body_buffer_limit if own is None else own) or 0


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
    decides,
    fails_open,
    request_headers,
    request_body,
    response_headers,
    response_body,
    message_timeout,
    receives_metadata,
    sees_server,
    mutation_rules,
    forward_rules,
    immediate_response,
    buffer_limit,
    idle_timeout,
    spoofed,
)
