"""Docker: the compose file and the Envoy configuration agree; where an engine runs, the stack comes up and routes.

Nothing is pulled: the live tests run where the images are there already. `bench/docker-proof.sh` makes such a place.
"""

from __future__ import annotations

import collections
import concurrent.futures
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import yaml

from extproc import config
from loadgen.stack.processes import free_port
from tests.support.envoy_yaml import ROOT, clean, cluster, listener

Json = dict[str, Any]

COMPOSE: Json = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES: Json = COMPOSE["services"]
ENGINES = [name for name, service in SERVICES.items() if service.get("profiles") == ["simulated"]]
PROJECT = "smetric-test"
PATIENCE_S = 240.0


def host_ports(name: str) -> list[tuple[str, int]]:
    """Where a cluster of the shipped configuration sends requests."""
    endpoints = cluster(clean(), name)["load_assignment"]["endpoints"][0]["lb_endpoints"]
    addresses = [endpoint["endpoint"]["address"]["socket_address"] for endpoint in endpoints]
    return [(address["address"], address["port_value"]) for address in addresses]


def test_every_host_that_envoy_knows_is_a_service() -> None:
    """Names and ports of envoy/envoy.yaml are those of the compose file."""
    assert host_ports("engines") == [(name, 8000) for name in ENGINES]
    assert host_ports("extproc") == [("extproc", 9002)]
    assert "0.0.0.0:9002" in SERVICES["extproc"]["command"]
    assert SERVICES["envoy"]["ports"][0].endswith(f":{listener(clean())['address']['socket_address']['port_value']}")


def test_simulated_engines_publish_where_the_router_listens() -> None:
    """Event and replay ports of both files agree, and so does the real engines' configuration."""
    endpoint = config.load(ROOT / "envoy" / "envoy.yaml").pools["engines"].endpoints[0]
    command = SERVICES["engine-0"]["command"]
    for flag, address in (("--kv-events", endpoint.kv_events), ("--kv-replay", endpoint.kv_replay)):
        assert address is not None
        assert command[command.index(flag) + 1] == address.replace("{address}", "*")
    events = json.loads(SERVICES["vllm-0"]["command"].split("'")[1])
    assert endpoint.kv_events == events["endpoint"].replace("*", "{address}")
    assert endpoint.kv_replay == events["replay_endpoint"].replace("*", "{address}")


def test_real_engines_take_the_names_of_simulated_ones() -> None:
    """One profile or the other, with Envoy's configuration unchanged; never both under one name by default."""
    profiles = (ROOT / ".env").read_text("utf-8").splitlines()[-1]
    assert profiles == "COMPOSE_PROFILES=simulated"
    aliases = [SERVICES[name]["networks"]["default"]["aliases"] for name in ("vllm-0", "vllm-1")]
    assert aliases == [["engine-0"], ["engine-1"]]
    assert {"--enable-prefix-caching", "--enable-prompt-tokens-details"} <= set(SERVICES["vllm-0"]["command"].split())


def test_the_model_directory_is_where_the_configuration_looks() -> None:
    """`model_dir` is relative to the YAML, in the container as in the repository."""
    written = yaml.safe_load((ROOT / "envoy" / "envoy.yaml").read_text("utf-8"))
    metadata = written["static_resources"]["clusters"][0]["metadata"]["filter_metadata"]["smetric"]
    mounted = {volume.rsplit(":", 2)[1] for volume in SERVICES["extproc"]["volumes"]}
    assert os.path.normpath(f"/etc/smetric/envoy/{metadata['model_dir']}") in mounted
    assert "/etc/smetric/envoy" in mounted


# Live


def docker(*arguments: str, check: bool = True, environment: Mapping[str, str] | None = None) -> str:
    """Run docker; its output."""
    return run(["docker", *arguments], check=check, environment=environment)


def run(command: Sequence[str], *, check: bool = True, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, **(environment or {})}
    )
    assert not check or done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def why_not() -> str:
    """What is missing for the live tests; empty where nothing is."""
    if shutil.which("docker") is None or not succeeds("docker", "info"):
        return "no Docker engine runs here"
    wanted = {"BASE": "python:3.11-slim", "ENVOY_IMAGE": "envoyproxy/envoy:v1.40.0", "REDIS_IMAGE": "redis:7.4-alpine"}
    for variable, default in wanted.items():
        image = os.environ.get(variable, default)
        if not succeeds("docker", "image", "inspect", image):
            return f"the image {image} is not here ({variable} names another one)"
    return ""


def compose_command() -> list[str]:
    plugin = succeeds("docker", "compose", "version")
    return [*(["docker", "compose"] if plugin else ["docker-compose"]), "--project-name", PROJECT]


class Stack:
    """The compose stack on ports of its own."""

    def __init__(self) -> None:
        self.port, self.metrics_port = free_port(), free_port()
        self.answered = 0  # requests
        self._environment = {"PORT": str(self.port), "METRICS_PORT": str(self.metrics_port)}

    def compose(self, *arguments: str, check: bool = True) -> str:
        return run([*compose_command(), *arguments], check=check, environment=self._environment)

    def container(self, service: str) -> str:
        return self.compose("ps", "-q", service).strip()

    def wait_healthy(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        services = ["envoy", "extproc", "redis", *ENGINES]
        states: dict[str, str] = {}
        while time.monotonic() < deadline:
            for service in services:
                states[service] = docker("inspect", "-f", "{{.State.Health.Status}}", self.container(service)).strip()
            if set(states.values()) == {"healthy"}:
                return
            time.sleep(1)
        raise AssertionError(f"not healthy: {states}\n{self.compose('logs', '--tail', '20')}")

    def chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        body = json.dumps({"model": "tiny", "messages": messages, "max_tokens": 64}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            text: str = json.load(answer)["choices"][0]["message"]["content"] or ""
        self.answered += 1
        return text

    def decisions(self) -> list[Json]:
        """The access log so far: one entry a request."""
        time.sleep(1.5)  # Envoy writes it every second
        lines = docker("logs", self.container("envoy")).splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Built, up and healthy; gone afterwards, with its volumes."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    stack = Stack()
    try:
        stack.compose("build")
        stack.compose("up", "--detach")
        stack.wait_healthy()
        yield stack
    finally:
        stack.compose("down", "--volumes", "--timeout", "5", check=False)


SYSTEM = {"role": "system", "content": "You are an agent. " * 600}


def session(stack: Stack, number: int, turns: int = 3) -> None:
    """An agent that shares its system prompt with all others and resends its history."""
    messages = [SYSTEM]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"session {number}, step {turn}"})
        messages.append({"role": "assistant", "content": stack.chat(messages)})


def together(stack: Stack, numbers: range, turns: int = 3) -> None:
    with concurrent.futures.ThreadPoolExecutor(len(numbers)) as pool:
        list(pool.map(lambda number: session(stack, number, turns), numbers))


@pytest.mark.timeout(900)
def test_the_stack_comes_up_and_keeps_sessions_where_their_cache_is(stack: Stack) -> None:
    """Eight sessions with one system prompt spread over four engines, and each stays on its own."""
    together(stack, range(8))
    entries = stack.decisions()
    assert [entry["status"] for entry in entries] == [200] * 24
    reasons = collections.Counter(entry["smetric"]["reason"] for entry in entries)
    firsts = collections.Counter(e["served_by"] for e in entries if e["smetric"]["reason"] == "first_turn")
    assert firsts.total() == 8
    assert len(firsts) == 4
    assert reasons["stick"] >= 14, reasons


@pytest.mark.timeout(300)
def test_the_server_runs_without_privileges(stack: Stack) -> None:
    """Not root, no capability, and unable to write to its own installation."""
    container = stack.container("extproc")
    assert docker("exec", container, "id", "-u").strip() == "10001"
    status = docker("exec", container, "grep", "CapEff", "/proc/1/status").split()
    assert int(status[1], 16) == 0
    probe = "import os; print(os.access('/opt/smetric', os.W_OK))"
    assert docker("exec", container, "python", "-c", probe).strip() == "False"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("service", ["engine-1", "redis", "extproc"])
def test_a_container_that_dies_mid_run_loses_no_request(service: str, stack: Stack) -> None:
    """An engine, Redis or the router killed while sessions run: every request is served."""
    before, answered = len(stack.decisions()), stack.answered
    container = stack.container(service)
    with concurrent.futures.ThreadPoolExecutor(1) as background:
        running = background.submit(together, stack, range(100, 112), 10)
        while stack.answered < answered + 24 and not running.done():
            time.sleep(0.01)
        docker("kill", container)
        assert not running.done(), "the sessions were over before it died"
        running.result()  # urllib raises at any answer but 200
    assert [entry["status"] for entry in stack.decisions()[before:]] == [200] * 120
    docker("start", container)
    stack.wait_healthy()
