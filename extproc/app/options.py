"""What the command line says to a process that serves or follows. Imports nothing slow."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

MEMORY: Final = "memory://"  # an index of this process alone


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
    conformance: bool = False  # let requests choose their instance: for conformance tests of gateways
    debug_explain: bool = False  # serve /debug/explain on an address that others can reach
    log_level: str = "info"
    replica: str = ""  # name of the process that this one replaces: it takes over at once what that one followed

    @property
    def shared(self) -> bool:
        """Whether other processes use the same index."""
        return not self.index.startswith("memory:")
