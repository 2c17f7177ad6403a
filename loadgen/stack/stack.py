"""A stack of real parts on this machine: Envoy, ext_proc, simulated engines, Redis if wanted. For the demo and tests.

    with Stack(engines=4, policy={"policy": "smetric"}) as stack:
        ...  # requests to stack.url

Owns processes and files; everything ends with the `with` block, however that is left.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadgen.json_types import Json
from loadgen.stack.envoy_config import HOST
from loadgen.stack.layout import MEMORY, REDIS, Ports, StackOptions, envoy_yaml, roles
from loadgen.stack.parts import Engine, Envoy, Extproc, Redis, Sidecar, StackFailed, get
from loadgen.stack.processes import POLL, Child, ProcessFailed, Started

# Longer than an operator's 20: a dozen processes on two cores keep each other waiting, which is not Redis's fault.
BUDGET_MS = 250
SETTLE = 0.2  # seconds in which Envoy's workers hear what its main thread already counts


class Stack(Started):
    """See the module.

    Attributes: `engines`, `sidecars`, `envoy`, `extproc`, `redis` (children, or None), `index_url`, `directory` (logs).
    """

    def __init__(self, engines: int = 4, **options: Any) -> None:
        """Choose ports and write the configuration; nothing runs before the `with` block.

        Args:
            engines: how many.
            options: the other fields of StackOptions.

        Raises:
            StackFailed: a program is not installed, or the port is taken.
        """
        asked = StackOptions(engines=engines, **options)
        beside = asked.beside
        self._ports = ports = Ports.choose(asked)
        self._temporary = None if asked.directory else tempfile.TemporaryDirectory(prefix="smetric-")
        self.directory = asked.directory or Path(self._temporary.name if self._temporary else "")
        self.directory.mkdir(parents=True, exist_ok=True)
        self.access_log_path = self.directory / "access.log"
        self.engines: list[Engine] = beside.engines if beside else _engines(asked, self.directory)
        self._own_engines: Sequence[Engine] = () if beside else self.engines
        self.sidecars = [
            Sidecar(engine, self.directory) if asked.sidecars and role != "prefill" else None
            for engine, role in zip(self.engines, roles(asked, self.engines), strict=True)
        ]
        index = beside.index_url if beside else asked.index
        self.redis = Redis(self.directory, asked.redis_program) if index == REDIS else None
        self.index_url: str = f"{self.redis.url}?budget_ms={BUDGET_MS}" if self.redis else index
        self.envoy_yaml = self.directory / "envoy.yaml"
        self.envoy_yaml.write_text(envoy_yaml(asked, ports, self.access_log_path, self.engines, self.sidecars), "utf-8")
        self.extproc = self._extproc(asked) if asked.extproc else None
        self.envoy = Envoy(self.envoy_yaml, self.directory, ports.envoy, ports.admin)

    @property
    def url(self) -> str:
        """Where clients send their requests: Envoy."""
        return f"http://{HOST}:{self._ports.envoy}"

    @property
    def admin_url(self) -> str:
        """Envoy's own administration."""
        return f"http://{HOST}:{self._ports.admin}"

    @property
    def metrics_url(self) -> str:
        """ext_proc's `/metrics` and `/debug/state` (of the first worker)."""
        return f"http://{HOST}:{self._ports.metrics}"

    @property
    def waves(self) -> Sequence[Sequence[Child | None]]:
        """ext_proc looks for Redis, and Envoy judges the health of all others, when they start."""
        return [self.redis], [*self._own_engines, *self.sidecars, self.extproc], [self.envoy]

    def close(self) -> None:
        """End everything; what clients hold open ends with Envoy."""
        super().close()
        if self._temporary:
            self._temporary.cleanup()

    def kill_extproc(self) -> None:
        """End ext_proc as a crash would."""
        if self.extproc:
            self.extproc.kill()

    def access_log(self, at_least: int = 0, timeout: float = 20.0) -> list[dict[str, Json]]:
        """Envoy's access log, one dict a request, in the order of ending. Waits until there are `at_least` so many.

        The decision of ext_proc is under `smetric`, None where there was none. What there is after `timeout` seconds
        is returned, however few.
        """
        deadline = time.monotonic() + timeout
        while True:
            text = self.access_log_path.read_text("utf-8") if self.access_log_path.exists() else ""
            entries = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
            if len(entries) >= at_least or time.monotonic() > deadline:
                return entries
            time.sleep(POLL)

    def envoy_counter(self, name: str) -> int:
        """One of Envoy's counters or gauges by its full name (`cluster.engines.upstream_rq_retry`); 0 without it."""
        stats = json.loads(get(f"{self.admin_url}/stats?format=json") or b'{"stats": []}')["stats"]
        return next((int(stat["value"]) for stat in stats if stat.get("name") == name), 0)

    def wait_healthy(self, engines: int, timeout: float = 60.0) -> None:
        """Block until Envoy's health checks count so many engines as healthy, for instance after a kill.

        Raises:
            StackFailed: they do not within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while (healthy := self.envoy_counter("cluster.engines.membership_healthy")) != engines:
            if time.monotonic() > deadline:
                raise StackFailed(f"Envoy counts {healthy} healthy engines, not {engines}, after {timeout:.0f} s")
            time.sleep(POLL)
        time.sleep(SETTLE)

    def state(self) -> dict[str, Json]:
        """ext_proc's `/debug/state`; empty while it is down."""
        state: dict[str, Json] = json.loads(get(f"{self.metrics_url}/debug/state") or b"{}")
        return state

    def _extproc(self, asked: StackOptions) -> Extproc:
        ports = self._ports
        options = ["--envoy-yaml", str(self.envoy_yaml), "--listen", f"{HOST}:{ports.extproc[0]}"]
        options += ["--health", f"{HOST}:{ports.health}", "--metrics", f"{HOST}:{ports.metrics}"]
        options += ["--index", self.index_url, *asked.extproc_options, "--workers", str(asked.workers)]
        return Extproc(ports.extproc[0], self.directory, options, self._follows)

    def _follows(self) -> bool:
        """Whether ext_proc knows every engine, and its cache where it has events."""
        pools = self.state().get("pools") or {}
        known = [instance for pool in pools.values() for instance in pool["instances"].values()]
        silent = [one for one in known if one.get("events") and one["events"]["state"] != "exact"]
        return len(known) == len(self.engines) and not silent


def _engines(asked: StackOptions, directory: Path) -> list[Engine]:
    return [Engine(number, directory, asked.engine_options, events=asked.events) for number in range(asked.engines)]


__all__ = ["HOST", "MEMORY", "REDIS", "Engine", "ProcessFailed", "Stack", "StackFailed"]
