"""What is wrong with a configuration, and what was understood of it, as text that an operator can act on."""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from extproc.base.model import Disaggregation, Role, Source
from extproc.config.settings import Discovery, Endpoint, PoolSettings, Settings
from extproc.routing.route_settings import RouteSettings

_WIDTH = 110
_INDENT = "  "


class Severity(StrEnum):
    """An error keeps the server from starting; a warning is a trap that shows under load or failure."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake or trap: where it is, what it does, what to write instead."""

    severity: Severity
    place: str  # "envoy.yaml:42 static_resources.clusters[1].name"
    message: str
    advice: str

    def render(self) -> str:
        """Place, message and advice, each on lines of its own."""
        return "\n".join(
            (
                f"{self.severity.value}: {self.place}",
                *textwrap.wrap(self.message, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT),
                *textwrap.wrap(self.advice, _WIDTH, initial_indent="  -> ", subsequent_indent="     "),
            )
        )


def error(place: str, message: str, advice: str) -> Problem:
    """A problem that keeps the server from starting."""
    return Problem(Severity.ERROR, place, message, advice)


def warning(place: str, message: str, advice: str) -> Problem:
    """A trap."""
    return Problem(Severity.WARNING, place, message, advice)


@dataclass(frozen=True, slots=True)
class Server:
    """Where Envoy finds the ext_proc server."""

    host: str
    port: int
    tls: bool
    health_only: bool = False  # a port of its own for health checks


@dataclass(frozen=True, slots=True)
class Report:
    """The result of reading a configuration. `settings` is None exactly where there are errors."""

    path: Path
    settings: Settings | None
    problems: tuple[Problem, ...]
    routes: tuple[tuple[str, RouteSettings], ...] = ()  # each route to a pool, and how it decides
    servers: tuple[Server, ...] = ()

    def render(self) -> str:
        """The whole report: errors, then warnings, each by line; what was understood; a summary line."""
        blocks = [problem.render() for problem in sorted(self.problems, key=_order)]
        if self.settings is not None:
            blocks.extend("\n".join(_pool(pool)) for pool in self.settings.pools.values())
            blocks.append("\n".join(_routes(self.settings, self.routes)))
        return "\n\n".join((*blocks, self._summary()))

    def _summary(self) -> str:
        counts = Counter(problem.severity for problem in self.problems)
        parts = [f"{counts[s]} {s.value}{'s' * (counts[s] != 1)}" for s in Severity if counts[s]]
        if self.settings is None:
            return f"{self.path}: {', '.join(parts)}. The server does not start with errors."
        ready = f"{self.path} is ready for ext_proc{f', with {parts[0]}' if parts else ''}"
        if self.settings.standalone:
            return f"{ready}."
        return f"{ready}; for Envoy's own opinion: envoy --mode validate -c {self.path}"


_LINE = re.compile(r":(\d+)(?: |$)")


def _order(problem: Problem) -> tuple[int, int]:
    line = _LINE.search(problem.place)
    return list(Severity).index(problem.severity), int(line[1]) if line else 0


_FOLLOWED = {
    Discovery.STATIC: "static endpoints",
    Discovery.STRICT_DNS: "endpoints by DNS",
    Discovery.EDS: "endpoints from an EDS file",
}


def _pool(pool: PoolSettings) -> Iterator[str]:
    yield f"pool {pool.name}: {_FOLLOWED[pool.discovery]}{f' {pool.eds_path}' if pool.eds_path else ''}"
    source = f"the KV events of {pool.engine}" if pool.source is Source.EVENTS else "what was routed where"
    yield f"{_INDENT}index      from {source}, in prompt blocks of {pool.prompt_block_bytes} bytes"
    yield f"{_INDENT}model      {pool.model_dir or 'no files: prompts are compared in a plain form of our own'}"
    if pool.models:
        yield f"{_INDENT}serves     {', '.join(sorted(pool.models))}; any other name is a LoRA adapter"
    for endpoint in pool.endpoints:
        yield f"{_INDENT}endpoint   {_endpoint(endpoint)}"
    if pool.discovery is Discovery.EDS and not pool.endpoints:
        yield f"{_INDENT}endpoint   none in the file yet"


def _endpoint(endpoint: Endpoint) -> str:
    parts = [f"{endpoint.host}:{endpoint.port}"]
    if endpoint.role is not Role.BOTH:
        parts.append(endpoint.role.value)
    if endpoint.data_parallel_size > 1:
        parts.append(f"{endpoint.data_parallel_size} ranks")
    if endpoint.kv_events is not None:
        parts.append(f"events {endpoint.kv_events}")
    if endpoint.kv_replay is not None:
        parts.append(f"replay {endpoint.kv_replay}")
    return ", ".join(parts)


def _routes(settings: Settings, routes: tuple[tuple[str, RouteSettings], ...]) -> Iterator[str]:
    if settings.standalone:
        yield "no listeners here: a gateway writes Envoy's configuration, which is not checked"
    if settings.default is not None:
        yield f"by default: {_route(settings.default)}"
    for name, route in routes:
        if route != settings.default:
            yield f"route {name}: {_route(route)}"


def _route(route: RouteSettings) -> str:
    options = ", ".join(f"{name} {value:g}" for name, value in _options(route))
    sends = ""
    if route.disaggregation is Disaggregation.FILTER:
        sends = f"; sends prefill requests itself, {route.prefill_timeout_s:g} s each"
    return f"pool {route.cluster} by {route.policy}{f' ({options})' if options else ''}{sends}"


def _options(route: RouteSettings) -> Iterator[tuple[str, float]]:
    yield from route.options.items()
    if route.max_load < math.inf:
        yield "max_load", route.max_load
