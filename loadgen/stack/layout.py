"""How a stack is laid out: what is asked for, which ports its parts get, and the Envoy configuration that joins them.

Starts nothing. Knows the engines by their ports alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extproc.app.workers import STRIDE
from loadgen.engine.options import MODEL_DIR
from loadgen.stack.envoy_config import HOST, EnvoySettings, render
from loadgen.stack.parts import Engine, Sidecar, StackFailed
from loadgen.stack.processes import free_port, listens

if TYPE_CHECKING:
    from loadgen.stack.stack import Stack

MEMORY = "memory://"
REDIS = "redis"  # an index in a Redis of the stack's own


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """What a stack consists of.

    Attributes:
        engines: how many simulated engines; not looked at where they are those of `beside`.
        policy: options of the ext_proc filter: {"policy": "smetric", "overload_floor": 0}.
        extproc: False leaves it out, and Envoy balances by its own fallback policy.
        index: MEMORY, REDIS (starts one), or the URL of a Redis that runs already.
        redis_program: the server that REDIS starts; by default the one from PyPI, or the machine's.
        events: whether engines publish KV events.
        engine_options: of `python -m loadgen engine`, for all of them.
        cluster: more keys of the engine cluster's `smetric` metadata.
        body_mode: of the ext_proc filter.
        message_timeout: of the same; longer than an operator's second, for a dozen processes on two cores keep each
            other waiting.
        roles: of the engines, in their order: "both" (all, by default), "prefill", "decode".
        sidecars: whether a routing sidecar stands in front of each engine that decodes.
        extproc_options: of `python -m extproc serve`.
        workers: of ext_proc, each with a port of its own.
        beside: a running stack whose engines and Redis this one uses: a second router behind an Envoy of its own.
        port: where Envoy listens; a free one by default.
        directory: for logs and configuration; a temporary one by default, which goes with the stack.
    """

    engines: int = 4
    policy: Mapping[str, str | float] = field(default_factory=dict)
    extproc: bool = True
    index: str = MEMORY
    redis_program: str | None = None
    events: bool = True
    engine_options: Sequence[str] = ()
    cluster: Mapping[str, Any] = field(default_factory=dict)
    body_mode: str = "BUFFERED"
    message_timeout: str = "5s"
    roles: Sequence[str] | None = None
    sidecars: bool = False
    extproc_options: Sequence[str] = ()
    workers: int = 1
    beside: Stack | None = None
    port: int | None = None
    directory: Path | None = None


@dataclass(frozen=True, slots=True)
class Ports:
    """Where Envoy and ext_proc listen, on HOST. Of several workers the first: each takes the ports STRIDE on."""

    envoy: int
    admin: int
    metrics: int
    health: int
    extproc: range

    @classmethod
    def choose(cls, options: StackOptions) -> Ports:
        """Free ones. Raises StackFailed where the one that Envoy is to have is taken."""
        if options.port is not None and listens(options.port):
            raise StackFailed(f"port {options.port} is in use by another program: choose another port")
        metrics, health, first = (spaced(options.workers + 1) for _ in range(3))
        extproc = range(first, first + STRIDE * options.workers, STRIDE)
        return cls(options.port or free_port(), free_port(), metrics, health, extproc)


def envoy_yaml(
    options: StackOptions,
    ports: Ports,
    access_log: Path,
    engines: Sequence[Engine],
    sidecars: Sequence[Sidecar | None],
) -> str:
    """The shipped Envoy configuration with this stack's parts in it."""
    parts = zip(engines, roles(options, engines), sidecars, strict=True)
    return render(
        EnvoySettings(
            port=ports.envoy,
            admin_port=ports.admin,
            access_log=access_log,
            model_dir=MODEL_DIR,
            engines=[_endpoint(engine, role, sidecar, events=options.events) for engine, role, sidecar in parts],
            extproc_ports=ports.extproc if options.extproc else (),
            health_port=ports.health,
            policy={key: str(value) for key, value in options.policy.items()},
            cluster=({} if options.events else {"source": "routed"}) | dict(options.cluster),
            body_mode=options.body_mode,
            message_timeout=options.message_timeout,
        )
    )


def roles(options: StackOptions, engines: Sequence[Engine]) -> Sequence[str]:
    """Of the engines, in their order."""
    return options.roles or ["both"] * len(engines)


def _endpoint(engine: Engine, role: str, sidecar: Sidecar | None, *, events: bool) -> dict[str, Any]:
    endpoint: dict[str, Any] = {"port": sidecar.port if sidecar else engine.port, "role": role}
    if events:
        endpoint["kv_events"] = f"tcp://{HOST}:{engine.events_port}"
        endpoint["kv_replay"] = f"tcp://{HOST}:{engine.replay_port}"
    return endpoint


def spaced(count: int) -> int:
    """The first of `count` free ports, STRIDE apart."""
    while True:
        first = free_port()
        if not any(listens(port) for port in range(first, first + STRIDE * count, STRIDE)):
            return first
