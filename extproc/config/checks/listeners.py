"""Checks of what is around the filter: the listener, the connection manager, the filters before ours."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from extproc.base.headers import PREFILLER
from extproc.base.model import Role
from extproc.config.checks.shared import REPLY, Pools, override_host, pools_behind, removed_before, shown
from extproc.config.envoy_types import (
    HttpProtocolOptionsHeadersWithUnderscoresAction as Underscores,
)
from extproc.config.report import Problem, warning
from extproc.config.topology import RouteEntry, Topology

BODY_BYTES = 32 * 1024 * 1024  # agents send 0.2-4 MB; with images, more
IDLE = timedelta(minutes=5)  # Envoy's default


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
        timeout, default = chain.manager.message.stream_idle_timeout, ""
        if timeout is None:
            timeout, default = IDLE, " (the default)"
            if chain.routes and all(_waits(route) for route in chain.routes):
                continue
        if timedelta(0) < timeout <= IDLE:
            text = (
                f"stream_idle_timeout is {shown(timeout)}{default}: a request that waits longer for a token is cut off"
            )
            place = chain.manager.node.near("stream_idle_timeout").place
            yield warning(place, text, "write stream_idle_timeout: 3600s")


def stream_duration(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Envoy ends a request that lasts longer, whatever it is doing."""
    for chain in topology.chains:
        options = chain.manager.message.common_http_protocol_options
        limit = options.max_stream_duration if options else None
        if limit is not None and timedelta(0) < limit < REPLY:
            place = chain.manager.node.near("common_http_protocol_options", "max_stream_duration").place
            text = f"max_stream_duration is {shown(limit)}: a reply that takes longer is cut off"
            yield warning(place, text, "remove max_stream_duration")


def underscores(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """What Envoy refuses while it parses gets no answer: it asks us about the one it has, and is gone before ours."""
    for chain in topology.chains:
        options = chain.manager.message.common_http_protocol_options
        if options and options.headers_with_underscores_action is Underscores.REJECT_REQUEST:
            text = "a request with an underscore in a header's name (Codex sends session_id) is refused, and with "
            text += "ext_proc in the chain its client sees a closed connection instead of 400"
            place = chain.manager.node.near("common_http_protocol_options", "headers_with_underscores_action").place
            yield warning(place, text, "write headers_with_underscores_action: ALLOW, or DROP_HEADER")


def spoofed(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Where Envoy reads the destination from a header, a client can write it while ext_proc is away."""
    for chain in topology.chains:
        removed = removed_before(chain)
        for pool in pools_behind(chain, topology):
            policy = override_host(pool)
            for source in policy.message.override_host_sources if policy else ():
                if source.header and source.header.lower() not in removed:
                    name = source.header
                    text = f"{pool.message.name} reads {name}: a client that sends it steers while ext_proc is away"
                    advice = f"put a header_mutation before ext_proc, with request_mutations: [{{remove: {name}}}]"
                    yield warning(chain.filters[chain.position].place, text, advice)


def prefiller_spoofed(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """A sidecar sends the prompt to whatever host the header names: it must be ours."""
    for chain in topology.chains:
        behind = [pools[pool.message.name] for pool in pools_behind(chain, topology) if pool.message.name in pools]
        halved = any(endpoint.role is not Role.BOTH for pool in behind for endpoint in pool.endpoints)
        if halved and PREFILLER not in removed_before(chain):
            text = f"a client that sends {PREFILLER} makes sidecars send prompts where it likes while ext_proc is away"
            advice = f"put a header_mutation before ext_proc, with request_mutations: [{{remove: {PREFILLER}}}]"
            yield warning(chain.filters[chain.position].place, text, advice)


def _waits(route: RouteEntry) -> bool:
    """Whether the route has a limit of its own, which is judged where it is written."""
    action = route.route.message.route
    return action is not None and action.idle_timeout is not None


def _own_limit(route: RouteEntry) -> int:
    own = route.route.message.request_body_buffer_limit
    return (route.virtual_host.message.request_body_buffer_limit if own is None else own) or 0


CHECKS: Final = (buffer_limit, idle_timeout, stream_duration, underscores, spoofed, prefiller_spoofed)
