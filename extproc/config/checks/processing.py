"""Checks of what Envoy sends to the filter, how long it waits, and what it does without an answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from extproc.base.errors import ConfigError
from extproc.base.model import Disaggregation
from extproc.config.checks.models import for_responses
from extproc.config.checks.shared import Pools, filters, modes, modes_of, overrides, shown
from extproc.config.envoy_limits import obeys_overrides
from extproc.config.envoy_types import ProcessingModeBodySendMode as Body
from extproc.config.envoy_types import ProcessingModeHeaderSendMode as Headers
from extproc.config.report import Problem, error, warning
from extproc.config.topology import Chain, Topology
from extproc.routing.disaggregation.halves import budget_ms
from extproc.routing.route_settings import RouteSettings, route_settings

DEFAULT_TIMEOUT = timedelta(milliseconds=200)  # Envoy's
TIMEOUTS = (timedelta(milliseconds=250), timedelta(seconds=10))


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
            text = "FULL_DUPLEX_STREAMED does not fail open, whatever failure_mode_allow says: with ext_proc away "
            text += "every POST is answered with 500"
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
    """A response body that is sent to us costs each token a round trip, for nothing but the ids of stored responses."""
    wanted = {
        override.node.near("processing_mode").place
        for _, route in topology.pool_routes()
        if for_responses(route)
        for override in route.overrides
    }
    for mode, node, _ in modes(topology):
        if mode.response_body_mode is not Body.NONE and node.place not in wanted:
            text = "the response body is not used; sending it costs every token a round trip"
            yield warning(node.near("response_body_mode").place, text, "write response_body_mode: NONE")


def closes_early(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Envoy closes the stream as soon as it has nothing more to show, and the load is given back with it."""
    for chain in topology.chains:
        asked = obeys_overrides(chain) is True  # then we ask for the response's end ourselves
        for mode, node in modes_of(chain):
            duplex = mode.request_body_mode is Body.FULL_DUPLEX_STREAMED
            early = duplex or (mode.request_body_mode is Body.NONE and not asked)
            shown = mode.response_trailer_mode is Headers.SEND or mode.response_body_mode is not Body.NONE
            if early and not shown:
                text = f"request_body_mode {mode.request_body_mode.name}: Envoy closes the stream at the response's "
                text += "headers, so that loads are too low while replies stream, and x-smetric-max-load does not shed"
                yield warning(node.near("response_trailer_mode").place, text, "write response_trailer_mode: SEND")


def holds_tunnels(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """A WebSocket's body never ends: where Envoy waits for it, we must be allowed to say that it shall not."""
    for chain in topology.chains:
        actions = [route.route.message.route for _, route in topology.pool_routes() if route in chain.routes]
        let_in = chain.manager.message.upgrade_configs or any(action and action.upgrade_configs for action in actions)
        if not let_in or obeys_overrides(chain) is True:
            continue
        for mode, node in modes_of(chain):
            if mode.request_body_mode in (Body.BUFFERED, Body.BUFFERED_PARTIAL):
                text = f"upgrades are let in, and request_body_mode {mode.request_body_mode.name} waits for the end of "
                text += "a body that never ends: we let go of such a request, and its load is not counted"
                yield warning(node.near("request_body_mode").place, text, "write allow_mode_override: true")


def message_timeout(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Long enough for the largest body, short enough for a router that hangs."""
    low, high = TIMEOUTS
    for node, message in filters(topology):
        timeout, default = message.message_timeout, " (the default)" if message.message_timeout is None else ""
        timeout = DEFAULT_TIMEOUT if timeout is None else timeout
        text = f"message_timeout is {shown(timeout)}{default}: "
        if timeout < low:
            text += "a large body or a busy moment takes longer, and the request goes on without a decision"
        elif timeout > high:
            text += "should ext_proc hang, each request waits that long"
        else:
            continue
        yield warning(node.near("message_timeout").place, text, "write message_timeout: 1s")


def prefill_timeout(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Where we send the prefill ourselves, Envoy must wait for it: longer than its message_timeout."""
    for chain in topology.chains:
        needed = max((_prefill_wait(metadata) for metadata in _asked(chain)), default=timedelta(0))
        granted = chain.filter.message.max_message_timeout or timedelta(0)
        if granted < needed:
            text = f"max_message_timeout is {shown(granted)}, and a prefill may take {shown(needed)} here: a request "
            text += "whose prefill outlasts message_timeout goes on without a decision"
            advice = f"write max_message_timeout: {shown(needed)}"
            yield error(chain.filter.node.near("max_message_timeout").place, text, advice)


def _asked(chain: Chain) -> Iterator[RouteSettings]:
    for metadata in (chain.metadata, *(route.metadata for route in chain.routes)):
        fixed = {key: header.value for key, header in metadata.items() if not header.dynamic}
        with contextlib.suppress(ConfigError):  # reported where it stands
            yield route_settings(fixed, RouteSettings("any"))


def _prefill_wait(asked: RouteSettings) -> timedelta:
    if asked.disaggregation is not Disaggregation.FILTER:
        return timedelta(0)
    return timedelta(milliseconds=budget_ms(asked.prefill_timeout_s))


CHECKS: Final = (
    fails_open,
    request_headers,
    request_body,
    response_headers,
    response_body,
    closes_early,
    holds_tunnels,
    message_timeout,
    prefill_timeout,
)
