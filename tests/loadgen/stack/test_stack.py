"""The stack: real Envoy over simulated engines, killed, restarted and cleaned up."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from loadgen.stack.processes import Child, ProcessFailed, free_port, listens
from loadgen.stack.stack import Stack, StackFailed
from tests.support.agents import played, sessions
from tests.support.paths import ROOT


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def mapped(pid: int | None) -> str:
    """The files that a process has in its memory."""
    return Path(f"/proc/{pid}/maps").read_text()


async def test_sessions_survive_the_death_of_an_engine() -> None:
    """Envoy over two engines, without ext_proc: all is served and logged; with one engine killed all is still served by
    the other; restarted, it serves again; and after the block nothing runs any more."""
    with Stack(2, extproc=False, engine_options=["--time-scale", "0.1"]) as stack:
        pids = [child.pid for child in stack.children]
        trace = sessions(8, 2, text=200, reply=8)
        rows = await played(stack, trace)
        assert [row.error for row in rows] == [None] * 16
        assert {row.instance for row in rows} == {engine.address for engine in stack.engines}
        log = await asyncio.to_thread(stack.access_log, 16)
        assert sorted(entry["served_by"] for entry in log) == sorted(row.instance or "" for row in rows)
        assert stack.envoy_counter("http.agents.downstream_rq_2xx") == 16
        # What Envoy keeps there for a hot restart, it would leave behind.
        assert "/dev/shm/" not in mapped(stack.envoy.pid)

        first, second = stack.engines
        first.kill()
        assert not listens(first.port)
        stack.wait_healthy(1)
        rows = await played(stack, trace)
        assert {(row.error, row.instance) for row in rows} == {(None, second.address)}

        first.restart()
        stack.wait_healthy(2)
        second.kill()
        stack.wait_healthy(1)
        rows = await played(stack, trace)
        assert {(row.error, row.instance) for row in rows} == {(None, first.address)}
    assert not any(alive(pid) for pid in pids if pid)
    assert not stack.directory.exists()


def test_a_part_that_fails_is_shown_with_its_log(tmp_path: Path) -> None:
    """When a part does not start, the error names it and shows the end of its log, and nothing is left running."""
    stack = Stack(1, extproc=False, engine_options=["--model-dir", "/nowhere"], directory=tmp_path)
    with pytest.raises(ProcessFailed, match=r"(?s)engine-0 ended with status 1.*/nowhere"), stack:
        pytest.fail("the stack came up")
    assert all(child.pid is None for child in stack.children)


def test_a_taken_port_is_explained() -> None:
    """Asking for a port that somebody listens on says so before anything is started."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StackFailed, match=f"port {port} is in use"):
            Stack(1, extproc=False, port=port)


def test_redis_comes_with_the_stack() -> None:
    """A stack with an index of its own in Redis starts that Redis too."""
    with Stack(1, extproc=False, index="redis") as stack:
        assert stack.redis
        assert stack.redis.pid
        assert stack.children[0] is stack.redis


def test_a_child_is_ended_with_its_children(tmp_path: Path) -> None:
    """A child leads a process group: killing it ends what it started, too."""
    port = free_port()
    script = f"sleep 100 & echo $! > {tmp_path}/pid; exec {sys.executable} -m http.server {port} --bind 127.0.0.1"
    child = Child("server", ["/bin/sh", "-c", script], tmp_path / "log", lambda: listens(port))
    child.start()
    child.wait_ready()
    grandchild = int((tmp_path / "pid").read_text())
    child.kill()
    assert child.pid is None
    assert not listens(port)
    status = Path(f"/proc/{grandchild}/stat")
    deadline = time.monotonic() + 5.0
    while status.exists() and status.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline


def test_a_missing_program_is_explained(tmp_path: Path) -> None:
    """A program that is not there is named."""
    with pytest.raises(ProcessFailed, match="/no/such/program"):
        Child("x", ["/no/such/program"], tmp_path / "log", lambda: True).start()


def test_the_configuration_is_the_shipped_one(tmp_path: Path) -> None:
    """What the stack gives Envoy has the filters, in order, and the retry policy of envoy/envoy.yaml."""
    import yaml

    shipped = yaml.safe_load((ROOT / "envoy" / "envoy.yaml").read_text())
    stack = Stack(1, policy={"policy": "least-loaded", "overload_floor": 0}, directory=tmp_path)
    ours = yaml.safe_load(stack.envoy_yaml.read_text())

    def manager(config: dict[str, Any]) -> dict[str, Any]:
        listener = config["static_resources"]["listeners"][0]
        found: dict[str, Any] = listener["filter_chains"][0]["filters"][0]["typed_config"]
        return found

    assert manager(ours)["route_config"] == manager(shipped)["route_config"]
    assert [f["name"] for f in manager(ours)["http_filters"]] == [f["name"] for f in manager(shipped)["http_filters"]]
    extproc = manager(ours)["http_filters"][1]["typed_config"]
    metadata = {entry["key"]: entry["value"] for entry in extproc["grpc_service"]["initial_metadata"]}
    assert metadata["x-smetric-policy"] == "least-loaded"
    assert metadata["x-smetric-overload-floor"] == "0"
    assert metadata["x-smetric-cluster"] == "engines"
    assert json.dumps(ours)


def test_envoy_asks_each_worker_for_its_health_where_that_worker_answers(tmp_path: Path) -> None:
    """A worker whose health is asked for at another port counts as dead for ever, and gets no request."""
    import yaml

    stack = Stack(1, workers=3, index="redis://127.0.0.1:1/0", directory=tmp_path)
    (cluster,) = (
        one
        for one in yaml.safe_load(stack.envoy_yaml.read_text())["static_resources"]["clusters"]
        if one["name"] == "extproc"
    )
    endpoints = [one["endpoint"] for one in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]]
    first = stack._ports.health
    assert [one["health_check_config"]["port_value"] for one in endpoints] == [first, first + 10, first + 20]
