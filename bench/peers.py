"""Two other routers over our simulated engines, for comparison: vllm-router 0.1.17 and sglang-router (smg) 0.3.2.

They live in a virtual environment of their own and are no dependency of this project. Knows how they are started and
which of their settings matter; measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadgen.stack.envoy_config import HOST
from loadgen.stack.parts import Engine, StackFailed, get
from loadgen.stack.processes import Child, Started, free_port

VENV = Path("/tmp/peers-venv")
PROGRAMS = {"vllm-router": ("vllm-router",), "smg": ("smg", "launch")}
LOG_LEVEL = {"vllm-router": "warning", "smg": "warn"}  # each has names of its own
MAKE = "python3 -m venv {venv} && {venv}/bin/pip install vllm-router==0.1.17 sglang-router==0.3.2"


@dataclass(frozen=True, slots=True)
class Peer:
    """One of the routers with its policy and settings (`{"balance-abs-threshold": 4}` is --balance-abs-threshold 4)."""

    program: str  # a key of PROGRAMS
    policy: str = "cache_aware"
    settings: Mapping[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What tables call it."""
        return f"{self.program} {self.policy}"

    def installed(self, venv: Path) -> Path:
        """Its program. Raises StackFailed where it is not there."""
        program = venv / "bin" / PROGRAMS[self.program][0]
        if not program.exists():
            raise StackFailed(f"{program} is not there. {MAKE.format(venv=venv)} brings it")
        return program


class PeerStack(Started):
    """Engines behind a peer, with nothing of ours in between; everything ends with the `with` block.

    Attributes: `url` (where clients send their requests), `engines`, `router`.
    """

    def __init__(
        self, peer: Peer, engines: int, engine_options: Sequence[str] = (), venv: Path = VENV, *, directory: Path
    ) -> None:
        """Choose ports; nothing runs before the `with` block.

        Raises:
            StackFailed: the peer is not installed.
        """
        words = PROGRAMS[peer.program]
        program = peer.installed(venv)
        directory.mkdir(parents=True, exist_ok=True)
        self.engines = [Engine(number, directory, engine_options, events=False) for number in range(engines)]
        port, metrics = free_port(), free_port()
        self.url = f"http://{HOST}:{port}"
        self.metrics_url = f"http://{HOST}:{metrics}/metrics"
        arguments = [str(program), *words[1:], "--host", HOST, "--port", str(port), "--policy", peer.policy]
        arguments += ["--prometheus-host", HOST, "--prometheus-port", str(metrics)]
        arguments += ["--log-level", LOG_LEVEL[peer.program], "--worker-urls", *(engine.url for engine in self.engines)]
        for name, value in peer.settings.items():
            arguments += [f"--{name}", f"{value:g}"]
        self.router = Child(
            peer.program, arguments, directory / f"{peer.program}.log", lambda: get(f"{self.url}/health") is not None
        )

    @property
    def waves(self) -> Sequence[Sequence[Child]]:
        """The engines, then the router."""
        return self.engines, [self.router]

    def metric(self, name: str, *labels: str) -> float:
        """The sum of the router's metric over the lines with all these `label="value"`; 0 without any."""
        lines = (get(self.metrics_url) or b"").decode().splitlines()
        found = [line for line in lines if line.startswith(name) and all(label in line for label in labels)]
        return sum(float(line.rpartition(" ")[2]) for line in found)
