"""Checks of routes where the request says more than its path: its model chooses the pool, its id the instance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from extproc.base.headers import POOL
from extproc.config.checks.shared import Pools, routes_to_pools
from extproc.config.envoy_types import ProcessingMode
from extproc.config.envoy_types import ProcessingModeBodySendMode as Body
from extproc.config.nodes import Node
from extproc.config.report import Problem, error, warning
from extproc.config.topology import RouteEntry, Topology
from extproc.requests.paths import Api, api_of

_PATHS = ("path", "prefix", "path_separated_prefix")


def led_by_model(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """Where the model chooses among pools, a route by the header that names the choice must lead to each."""
    for chain in topology.chains:
        led = {name for route in chain.routes for name in _named(route.route.node) if name == route.cluster}
        for route in chain.routes:
            if len(route.pools) < 2 or _named(route.route.node):
                continue
            for name in route.pools:
                if name in pools and name != route.cluster and name not in led:
                    text = f"no route leads requests for the models of {name} there: they go to {route.cluster}"
                    advice = f"write before this route: - match: {{prefix: /, headers: [{{name: {POOL}, "
                    advice += f"string_match: {{exact: {name}}}}}]}} with route: {{cluster: {name}, ...}}"
                    yield error(route.route.node.near("match").place, text, advice)


def names_models(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """A pool among several is chosen by the models that it names, each of which one pool names."""
    for listed in dict.fromkeys(route.pools for _, route in topology.pool_routes() if len(route.pools) > 1):
        owners: dict[str, str] = {}
        for name in listed:
            if name not in pools:
                continue
            place = topology.clusters[name].node.near("metadata", "filter_metadata", "smetric", "models").place
            if not pools[name].models and name != listed[0]:
                text = f"{name} names no models: among several pools it is chosen for LoRA adapters alone"
                yield warning(place, text, "write models: [NAME, ...], as in --served-model-name")
            for model in sorted(pools[name].models):
                if owners.setdefault(model, name) != name:
                    text = f"{owners[model]} and {name} both serve {model}: all its requests go to {owners[model]}"
                    yield warning(place, text, f"remove {model} here, or give it another name")


def shows_responses(topology: Topology, pools: Pools) -> Iterator[Problem]:
    """A request that continues a stored response must reach the engine that keeps it."""
    for chain, route in routes_to_pools(topology):
        message = chain.filter.message
        mode = message.processing_mode or ProcessingMode()
        for override in route.overrides:
            mode = override.message.processing_mode or mode
        streams = mode.request_body_mode is Body.FULL_DUPLEX_STREAMED
        if not for_responses(route) or mode.response_body_mode is not Body.NONE:
            continue
        text = f"{Api.RESPONSES}: we cannot see the ids of responses, so a request with previous_response_id goes by "
        text += "load, though one engine alone can serve it"
        if streams:
            text += "; with FULL_DUPLEX_STREAMED requests Envoy takes no mode_override"
            advice = "write response_body_mode: STREAMED in the processing_mode of ExtProcPerRoute.overrides here"
            yield warning(route.route.node.near("match").place, text, advice)
        elif not message.allow_mode_override:
            yield warning(chain.filter.node.near("allow_mode_override").place, text, "write allow_mode_override: true")


def _named(route: Node) -> list[str]:
    """The pools that a route asks for by our header."""
    names = []
    for header in route.every("match", "headers"):
        name, exact = header.get("name"), header.get("string_match", "exact")
        if name is not None and exact is not None and str(name.raw.value).lower() == POOL:
            names.append(str(exact.raw.value))
    return names


def for_responses(route: RouteEntry) -> bool:
    """Whether a route is for the Responses API alone."""
    match = route.route.node.get("match")
    paths = [match.get(kind) for kind in _PATHS] if match is not None else []
    return any(path is not None and api_of(str(path.raw.value)) is Api.RESPONSES for path in paths)


CHECKS: Final = (led_by_model, names_models, shows_responses)
