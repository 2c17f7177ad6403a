"""A stack of real parts on this machine: Envoy, ext_proc, simulated engines, Redis if wanted. For the demo and tests.

    with Stack(engines=4, policy={"policy": "smetric"}) as stack:
        asyncio.run(client.run(stack.url, sessions))

Owns ports, processes and files; everything ends with the `with` block, however that is left.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from extproc.app.workers import STRIDE
from loadgen.engine.server import MODEL_DIR
from loadgen.json_types import Json
from loadgen.stack.envoy_config import HOST, EnvoySettings, render
from loadgen.stack.parts import Engine, Sidecar, StackFailed, envoy_program, get, redis_server
from loadgen.stack.processes import POLL, Child, ProcessFailed, free_port, listens, uninterrupted

MEMORY = "memory://"
# Longer than an operator's 20: a dozen processes on two cores keep each other waiting, which is not Redis's fault.
BUDGET_MS = 250
SETTLE = 0.2  # seconds in which Envoy's workers hear what its main thread already counts
REDIS = "redis"  # an index in a Redis of the stack's own


class Stack:
    """See the module.

    Attributes: `engines`, `envoy`, `extproc`, `redis` (children, or None), `index_url`, `directory` (logs).
    """

    def __init__(
        self,
        engines: int = 4,
        *,
        policy: Mapping[str, str | float] | None = None,
        extproc: bool = True,
        index: str = MEMORY,
        redis_program: str | None = None,
        events: bool = True,
        engine_options: Sequence[str] = (),
        cluster: Mapping[str, Any] | None = None,
        body_mode: str = "BUFFERED",
        roles: Sequence[str] | None = None,
        sidecars: bool = False,
        extproc_options: Sequence[str] = (),
        workers: int = 1,
        beside: Stack | None = None,
        port: int | None = None,
        directory: Path | None = None,
    ) -> None:
        """Choose ports and write the configuration; nothing runs before the `with` block.

        Args:
            engines: how many simulated engines; not looked at where they are those of `beside`.
            policy: options of the ext_proc filter: {"policy": "smetric", "overload_floor": 0}.
            extproc: False leaves it out, and Envoy balances by its own fallback policy.
            index: MEMORY, REDIS (starts one), or the URL of a Redis that runs already.
            redis_program: the server that REDIS starts; by default the one from PyPI, or the machine's.
            events: whether engines publish KV events.
            engine_options: of `python -m loadgen engine`, for all of them.
            cluster: more keys of the engine cluster's `smetric` metadata.
            body_mode: of the ext_proc filter.
            roles: of the engines, in their order: "both" (all, by default), "prefill", "decode".
            sidecars: whether a routing sidecar stands in front of each engine that decodes.
            extproc_options: of `python -m extproc serve`.
            workers: of ext_proc, each with a port of its own.
            beside: a running stack whose engines and Redis this one uses: a second router behind an Envoy of its own.
            port: where Envoy listens; a free one by default.
            directory: for logs and configuration; a temporary one by default, which goes with the stack.

        Raises:
            StackFailed: a program is not installed, or the port is taken.
        """
        if port is not None and listens(port):
            raise StackFailed(f"port {port} is in use by another program: choose another port")
        self._temporary = None if directory else tempfile.TemporaryDirectory(prefix="smetric-")
        self.directory = directory or Path(self._temporary.name if self._temporary else "")
        self.directory.mkdir(parents=True, exist_ok=True)
        self.access_log_path = self.directory / "access.log"
        self._port = port or free_port()
        self._admin_port = free_port()
        self._metrics_port, self._health_port, first = (_spaced(workers + 1) for _ in range(3))
        self._beside = beside
        self.engines: list[Engine] = (
            beside.engines
            if beside
            else [Engine(number, self.directory, list(engine_options), events=events) for number in range(engines)]
        )
        each = roles or ["both"] * len(self.engines)
        self.sidecars = [
            Sidecar(engine, self.directory) if sidecars and role != "prefill" else None
            for engine, role in zip(self.engines, each, strict=True)
        ]
        index = beside.index_url if beside else index
        self.redis = self._redis(redis_program) if index == REDIS else None
        self.index_url: str = f"redis://{HOST}:{self._redis_port}/0?budget_ms={BUDGET_MS}" if self.redis else index
        ports = range(first, first + STRIDE * workers, STRIDE) if extproc else ()
        self.envoy_yaml = self.directory / "envoy.yaml"
        settings = EnvoySettings(
            port=self._port,
            admin_port=self._admin_port,
            access_log=self.access_log_path,
            model_dir=MODEL_DIR,
            engines=[
                _endpoint(engine, role, sidecar, events=events)
                for engine, role, sidecar in zip(self.engines, each, self.sidecars, strict=True)
            ],
            extproc_ports=ports,
            health_port=self._health_port,
            policy={key: str(value) for key, value in (policy or {}).items()},
            cluster=({} if events else {"source": "routed"}) | dict(cluster or {}),
            body_mode=body_mode,
        )
        self.envoy_yaml.write_text(render(settings), "utf-8")
        self.extproc = self._extproc(first, [*extproc_options, "--workers", str(workers)]) if extproc else None
        self.envoy = self._envoy()

    @property
    def url(self) -> str:
        """Where clients send their requests: Envoy."""
        return f"http://{HOST}:{self._port}"

    @property
    def admin_url(self) -> str:
        """Envoy's own administration."""
        return f"http://{HOST}:{self._admin_port}"

    @property
    def metrics_url(self) -> str:
        """ext_proc's `/metrics` and `/debug/state` (of the first worker)."""
        return f"http://{HOST}:{self._metrics_port}"

    @property
    def children(self) -> list[Child]:
        """Everything that runs, in the order of starting."""
        children = (self.redis, *self._own_engines, *self.sidecars, self.extproc, self.envoy)
        return [child for child in children if child is not None]

    @property
    def _own_engines(self) -> Sequence[Engine]:
        return () if self._beside else self.engines

    def __enter__(self) -> Stack:
        """Start everything and wait until a request would be served and followed.

        Raises:
            ProcessFailed: with the end of the log of the part that failed.
        """
        try:
            # ext_proc looks for Redis, and Envoy judges the health of all others, when they start.
            for wave in ([self.redis], [self.extproc, *self._own_engines, *self.sidecars], [self.envoy]):
                started = [child for child in wave if child]
                for child in started:
                    child.start()
                for child in started:
                    child.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End everything; what clients hold open ends with Envoy. A second Ctrl-C does not interrupt it."""
        with uninterrupted():
            for child in self.children:
                child.terminate()
            for child in self.children:
                child.stop(grace=1.0)
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

    def _redis(self, program: str | None) -> Child:
        self._redis_port = free_port()
        options = ["--port", str(self._redis_port), "--bind", HOST, "--save", "", "--appendonly", "no"]
        arguments = [program or redis_server(), *options, "--dir", str(self.directory)]
        return Child("redis", arguments, self.directory / "redis.log", lambda: listens(self._redis_port))

    def _extproc(self, port: int, options: Sequence[str]) -> Child:
        arguments = [sys.executable, "-m", "extproc", "serve", "--envoy-yaml", str(self.envoy_yaml)]
        arguments += ["--listen", f"{HOST}:{port}", "--health", f"{HOST}:{self._health_port}"]
        arguments += ["--metrics", f"{HOST}:{self._metrics_port}", "--index", self.index_url, *options]

        def ready() -> bool:
            return listens(port) and self._follows()

        return Child("extproc", arguments, self.directory / "extproc.log", ready)

    def _follows(self) -> bool:
        """Whether ext_proc knows every engine, and its cache where it has events."""
        pools = self.state().get("pools") or {}
        known = [instance for pool in pools.values() for instance in pool["instances"].values()]
        silent = [one for one in known if one.get("events") and one["events"]["state"] != "exact"]
        return len(known) == len(self.engines) and not silent

    def _envoy(self) -> Child:
        arguments = [envoy_program(), "-c", str(self.envoy_yaml), "--disable-hot-restart", "--concurrency", "2"]
        arguments += ["--log-level", "warning", "--file-flush-interval-msec", "50", "--file-flush-min-size-kb", "1"]

        def ready() -> bool:
            return get(f"{self.admin_url}/ready") is not None and listens(self._port)

        return Child("envoy", arguments, self.directory / "envoy.log", ready)


def _endpoint(engine: Engine, role: str, sidecar: Sidecar | None, *, events: bool) -> dict[str, Any]:
    endpoint: dict[str, Any] = {"port": sidecar.port if sidecar else engine.port, "role": role}
    if events:
        endpoint["kv_events"] = f"tcp://{HOST}:{engine.events_port}"
        endpoint["kv_replay"] = f"tcp://{HOST}:{engine.replay_port}"
    return endpoint


def _spaced(count: int) -> int:
    """The first of `count` free ports, STRIDE apart: each worker takes the ports that far on."""
    while True:
        first = free_port()
        if not any(listens(port) for port in range(first, first + STRIDE * count, STRIDE)):
            return first


__all__ = ["MEMORY", "REDIS", "Engine", "ProcessFailed", "Stack", "StackFailed"]
