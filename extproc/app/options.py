"""What the command line says to a process that serves or follows. Imports nothing slow."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from ipaddress import ip_address
from pathlib import Path
from typing import Final

MEMORY: Final = "memory://"  # an index of this process alone
PIPE: Final = "pipe:"  # that index, for the child that follows the engines (index/piped.py)
# Streams of one gRPC connection at a time, about 300 MB if a stranger opens them. Far more than an Envoy has in flight:
# it opens another connection where one is full, but what it sends before it knows the limit goes on without a decision.
MAX_STREAMS: Final = 10_000
REMEMBER_BYTES: Final = (
    64 << 20
)  # of bodies that were read (requests/beginnings.py): dozens of an agent's long sessions


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def local(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False


class Debug(Enum):
    """Where `/debug` is served, where it has no address of its own."""

    WITH_METRICS = "with metrics"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Options:
    """What one process is told besides its settings."""

    listen: Address
    health: Address
    metrics: Address
    index: str
    workers: int
    drain_timeout_s: float
    follow: bool  # whether this `serve`, or a child of it, follows the engines' events
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_self_signed: bool = False
    tls_client_ca: Path | None = None  # who signs the certificates that Envoy must show
    secret: bytes = field(default=b"", repr=False)  # of the index's keys, where it is not kept in the index itself
    tokens: tuple[str, ...] = field(default=(), repr=False)  # of which Envoy must show one
    max_streams: int = MAX_STREAMS  # of one connection
    conformance: bool = False  # let requests choose their instance: for conformance tests of gateways
    debug: Address | Debug = Debug.WITH_METRICS  # where /debug is served
    debug_tokens: tuple[str, ...] = field(default=(), repr=False)  # of which /debug wants one
    debug_explain: bool = False  # serve /debug/explain on an address that others can reach
    remember_bytes: int = REMEMBER_BYTES  # 0 remembers nothing
    watch: bool = False  # read the Envoy YAML again when it changes
    log_level: str = "info"
    replica: str = ""  # name of the process that this one replaces: it takes over at once what that one followed

    @property
    def debug_address(self) -> Address | None:
        """Of /debug; None where it is not served."""
        if self.debug is Debug.WITH_METRICS:
            return self.metrics
        return None if self.debug is Debug.OFF else self.debug

    @property
    def shared(self) -> bool:
        """Whether other processes use the same index, which is Redis then."""
        return not self.index.startswith((MEMORY, PIPE))
