"""The world of a chaos run: Envoy, Redis, two router workers, a follower, engines whose pool is a file that may change.

Owns the stack and the EDS file, and answers what a fault or a measurement asks of them. It breaks nothing itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import yaml
from redis import Redis
from redis.exceptions import AuthenticationError

from extproc.app.workers import STRIDE
from loadgen.replay.chat_request import CHAT
from loadgen.stack.parts import Engine, get
from loadgen.stack.stack import HOST, REDIS, Stack

WORKERS = 2
BLOCKS = 2_500  # of 16 tokens: caches that are full within a minute, so that blocks are stored and evicted all the time
ENGINE_OPTIONS = ("--blocks", str(BLOCKS), "--max-model-len", "32000", "--time-scale", "0.3")
MARK = "SMETRIC_CHAOS"  # in the environment of every process of a run, so that one that is left is found
ADMIN = "chaos"  # a Redis user that no fault refuses
# What Envoy waited for ext_proc, as Envoy measured it.
WAITED = {
    part: f"%FILTER_STATE(envoy.filters.http.ext_proc:FIELD:request_{part}_latency_us)%" for part in ("header", "body")
}


class World:
    """See the module. `with World(...)` starts it; `rng` is all that is left to chance."""

    def __init__(self, engines: int, seed: int, megabytes: float, directory: Path | None = None) -> None:
        """Nothing runs before the `with` block. `megabytes` is the size of a hostile body."""
        self.rng = Random(seed)
        self.megabytes = megabytes
        self.mark = uuid.uuid4().hex
        os.environ[MARK] = self.mark
        self.stack = Stack(engines, index=REDIS, workers=WORKERS, engine_options=ENGINE_OPTIONS, directory=directory)
        self.killed: dict[str, float] = {}  # engine -> when it was last killed, by time.monotonic
        self.pool = Pool(self.stack)

    def __enter__(self) -> World:
        self.stack.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    @property
    def engines(self) -> list[Engine]:
        """All of them, also those that are not in the pool at the moment."""
        return self.stack.engines

    def any_engine(self) -> Engine:
        """One of them, by chance."""
        return self.rng.choice(self.engines)

    def note_killed(self, engine: Engine) -> None:
        """A reply that had begun there cannot be saved by anybody."""
        self.killed[engine.address] = time.monotonic()

    @property
    def router(self) -> int:
        """The process id of `serve`."""
        assert self.stack.extproc is not None
        if self.stack.extproc.pid is None:
            raise LookupError("the router does not run")
        return self.stack.extproc.pid

    def child_of_router(self, words: str) -> int:
        """The process id of a child of `serve` by its command line: "serve 1", "follow"."""
        for pid in descendants(self.router):
            if words in command(pid):
                return pid
        raise LookupError(f"the router has no child `{words}`")

    @property
    def grpc_ports(self) -> Sequence[int]:
        """Of the router's workers."""
        return self.stack._ports.extproc

    @property
    def other_ports(self) -> Sequence[int]:
        """Health and metrics of the workers."""
        ports = self.stack._ports
        return [first + STRIDE * number for number in range(WORKERS) for first in (ports.health, ports.metrics)]

    def pages(self, path: str) -> Iterator[bytes | None]:
        """A page of each worker's HTTP port; None where it does not answer."""
        for number in range(WORKERS):
            yield get(f"http://{HOST}:{self.stack._ports.metrics + STRIDE * number}{path}")

    def states(self) -> list[dict[str, Any]]:
        """Each worker's `/debug/state`, {} while it does not answer."""
        return [json.loads(page or b"{}") for page in self.pages("/debug/state")]

    def unclean(self) -> str:
        """What is not yet as it should be; empty when all is well."""
        for number, state in enumerate(self.states()):
            instances = state.get("pools", {}).get("engines", {}).get("instances", {})
            if set(instances) != {engine.address for engine in self.engines}:
                return f"worker {number} knows {len(instances)} of {len(self.engines)} engines"
            for name, one in instances.items():
                if one["kv_events"] != self._own_events(name):
                    return f"worker {number}: {name} is said to publish at {one['kv_events']}"
                knowledge = (one["events"] or {}).get("state")
                if knowledge != "exact" or one["healthy"] is False or one["ejected_s"]:
                    return f"worker {number}: {name} {knowledge}, healthy {one['healthy']}, out {one['ejected_s']} s"
        for cluster, count in (("engines", len(self.engines)), ("extproc", WORKERS)):
            healthy = self.stack.envoy_counter(f"cluster.{cluster}.membership_healthy")
            if healthy != count:
                return f"Envoy counts {healthy} of {count} healthy in {cluster}"
        return ""

    def _own_events(self, address: str) -> str:
        return next(f"tcp://{HOST}:{one.events_port}" for one in self.engines if one.address == address)

    def loads(self) -> float:
        """Requests that any worker still counts, and streams that are open."""
        total = 0.0
        for state in self.states():
            pools = state.get("pools", {}).values()
            total += sum(one["in_flight"] for pool in pools for one in pool["instances"].values())
            total += state.get("streams", 0)
        return total

    def hits(self, body: bytes) -> Iterator[int]:
        """What each worker believes that each engine has of this prompt."""
        for number in range(WORKERS):
            url = f"http://{HOST}:{self.stack._ports.metrics + STRIDE * number}/debug/explain?path={CHAT}"
            try:
                with urllib.request.urlopen(urllib.request.Request(url, body), timeout=5) as answer:
                    instances: Mapping[str, Mapping[str, int]] = json.load(answer)["instances"]
            except OSError:
                instances = {}
            for engine in self.engines:
                yield instances.get(engine.address, {}).get("hit_bytes", 0)

    def redis(self) -> Redis:
        """A client that no fault refuses, in place as soon as Redis answers."""
        port = self.stack.redis.port if self.stack.redis else 0
        admin = Redis(port=port, username=ADMIN, password="any")
        try:
            admin.ping()
        except AuthenticationError:  # a new server does not know it, and then the default user may still do all
            with Redis(port=port) as plain:
                plain.execute_command("ACL", "SETUSER", ADMIN, "on", "nopass", "~*", "&*", "+@all")
        return admin

    @asynccontextmanager
    async def attacked(self, name: str, **options: Any) -> AsyncIterator[None]:
        """A hostile peer in a process of its own, until the block ends."""
        words = [sys.executable, "-m", "bench.chaos.attack", name, json.dumps(options)]
        log = (self.stack.directory / "attacks.log").open("ab")
        peer = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=Path.cwd())
        try:
            yield
        finally:
            peer.kill()
            await asyncio.to_thread(peer.wait)
            log.close()

    def left_over(self) -> list[str]:
        """Processes of this run that still live, when none should."""
        wanted = f"{MARK}={self.mark}".encode()
        found = []
        for directory in Path("/proc").glob("[0-9]*"):
            if int(directory.name) == os.getpid():
                continue
            try:
                if wanted in (directory / "environ").read_bytes().split(b"\0"):
                    found.append(f"{directory.name} {command(int(directory.name))[:100]}")
            except OSError:
                continue
        return found


class Pool:
    """The engines' cluster as an EDS file, which Envoy and the router both follow."""

    def __init__(self, stack: Stack) -> None:
        """Rewrites the stack's configuration before it starts."""
        self._path = stack.directory / "engines.yaml"
        root = yaml.safe_load(stack.envoy_yaml.read_text("utf-8"))
        root["node"] = {"id": "chaos", "cluster": "chaos"}  # which Envoy demands for anything dynamic
        cluster = next(one for one in root["static_resources"]["clusters"] if one["name"] == "engines")
        assignment = cluster.pop("load_assignment")
        cluster["type"] = "EDS"
        cluster["eds_cluster_config"] = {"eds_config": {"path_config_source": {"path": str(self._path)}}}
        manager = root["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        manager["access_log"][0]["typed_config"]["log_format"]["json_format"]["waited_us"] = WAITED
        self._endpoints: list[dict[str, Any]] = assignment["endpoints"][0]["lb_endpoints"]
        self.write(self._endpoints)
        self.yaml = yaml.dump(root, sort_keys=False)
        stack.envoy_yaml.write_text(self.yaml, "utf-8")

    def all(self) -> list[dict[str, Any]]:
        """Every engine's endpoint, as a copy that may be changed."""
        copied: list[dict[str, Any]] = json.loads(json.dumps(self._endpoints))
        return copied

    def restore(self) -> None:
        """All engines, as they are."""
        self.write(self._endpoints)

    def write(self, endpoints: Sequence[Mapping[str, Any]]) -> None:
        """Replace the file by these endpoints."""
        assignment = {
            "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            "cluster_name": "engines",
            "endpoints": [{"lb_endpoints": list(endpoints)}],
        }
        self.write_text(json.dumps({"version_info": str(time.time_ns()), "resources": [assignment]}))

    def write_text(self, text: str) -> None:
        """Replace the file by any text, in one step: Envoy looks when a file is moved to its place."""
        beside = self._path.with_suffix(".new")
        beside.write_text(text, "utf-8")
        beside.rename(self._path)

    def of(self, engine: Engine, **smetric: str | None) -> list[dict[str, Any]]:
        """All endpoints; this engine's metadata has other values, or lacks what is None."""
        endpoints = self.all()
        for endpoint in endpoints:
            if endpoint["endpoint"]["address"]["socket_address"]["port_value"] == engine.port:
                metadata = endpoint["metadata"]["filter_metadata"]["smetric"]
                metadata |= smetric
                for key in [key for key, value in metadata.items() if value is None]:
                    del metadata[key]
        return endpoints


def descendants(pid: int) -> Iterator[int]:
    """Children of a process, theirs, and so on."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = [int(child) for child in children.read_text().split()]
        except OSError:
            continue
        for child in found:
            yield child
            yield from descendants(child)


def command(pid: int) -> str:
    """A process's command line; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def send(pid: int, number: signal.Signals) -> None:
    """A signal to one process, if it still lives."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
