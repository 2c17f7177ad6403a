"""What the configuration says, as frozen values: pools and their endpoints. Knows neither YAML nor Envoy.

`instances` is the one place that turns a configured endpoint and an IP address into the instances behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from extproc.base import blocks
from extproc.base.model import Engine, Gateway, Instance, Role, Source
from extproc.routing.pace import ALL_LEARNT, Given
from extproc.routing.route_settings import RouteSettings

ADDRESS = "{address}"  # in an event address: the IP address of the endpoint, bracketed if IPv6
DNS_REFRESH_S = 5.0  # Envoy's default of dns_refresh_rate


class Discovery(StrEnum):
    """How the endpoints of a cluster become hosts; the cluster types of Envoy that we can follow."""

    STATIC = "STATIC"
    STRICT_DNS = "STRICT_DNS"
    EDS = "EDS"  # from a file


class DnsFamily(StrEnum):
    """Which addresses of a name Envoy takes (`dns_lookup_family`): a host that it does not know is ignored."""

    AUTO = "AUTO"  # IPv6, and IPv4 only where there is none
    V4_ONLY = "V4_ONLY"
    V6_ONLY = "V6_ONLY"
    V4_PREFERRED = "V4_PREFERRED"
    ALL = "ALL"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint of a pool's cluster: a name or an IP address, before it is resolved."""

    host: str
    port: int
    kv_events: str | None = None  # ZMQ address of rank 0; may contain ADDRESS
    kv_replay: str | None = None
    role: Role = Role.BOTH
    data_parallel_size: int = 1
    priority: int = 0  # of its locality: hosts of a higher number serve while no host of a lower one can


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """The active HTTP health check of a cluster, which every host is asked."""

    path: str
    host: str  # the host header
    interval_s: float
    timeout_s: float
    unhealthy_threshold: int
    healthy_threshold: int
    statuses: tuple[range, ...]  # of a healthy host


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """One Envoy cluster and what its metadata says under `smetric`."""

    name: str
    discovery: Discovery
    endpoints: tuple[Endpoint, ...]  # of EDS: those in the file when it was read
    eds_path: Path | None = None
    eds_service: str = ""  # the cluster_name to look for in the EDS file
    dns_refresh_s: float = DNS_REFRESH_S
    dns_family: DnsFamily = DnsFamily.AUTO
    model_dir: Path | None = None
    models: frozenset[str] = frozenset()  # names of the base model; empty: any
    prompt_block_bytes: int = blocks.DEFAULT_SIZE
    source: Source = Source.EVENTS
    engine: Engine = Engine.VLLM
    health_check: HealthCheck | None = None
    pace: Given = ALL_LEARNT  # what is known of how fast it prefills
    tls: bool = False  # whether Envoy speaks TLS to the instances


@dataclass(frozen=True, slots=True)
class Settings:
    """What the Envoy YAML at `path` says to the router."""

    path: Path
    pools: Mapping[str, PoolSettings]
    default: RouteSettings | None  # of the ext_proc filter; None where only its routes name a pool
    standalone: bool = False  # there is no filter: a gateway writes Envoy's configuration
    gateway: Gateway = field(default_factory=Gateway)


def instances(endpoint: Endpoint, address: str) -> tuple[Instance, ...]:
    """The instances behind one endpoint at one IP address (unbracketed): one for each data-parallel rank.

    Rank r publishes its events on the configured port + r, and replays on the replay port + r, as vLLM does.
    """
    host = f"[{address}]" if ":" in address else address

    def zmq(template: str | None, rank: int) -> str | None:
        if template is None:
            return None
        name, _, port = template.replace(ADDRESS, host).rpartition(":")
        if name == f"tcp://{endpoint.host}":
            name = f"tcp://{host}"  # the endpoint's own name may have several addresses; this instance has one
        return f"{name}:{int(port) + rank}"

    single = endpoint.data_parallel_size == 1
    return tuple(
        Instance(
            address=f"{host}:{endpoint.port}",
            rank=None if single else rank,
            role=endpoint.role,
            priority=endpoint.priority,
            kv_events=zmq(endpoint.kv_events, rank),
            kv_replay=zmq(endpoint.kv_replay, rank),
        )
        for rank in range(endpoint.data_parallel_size)
    )
