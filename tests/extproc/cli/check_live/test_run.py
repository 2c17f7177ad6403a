"""Broken deployments of real parts: simulated engines, real Redis. Each mistake is found by name."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.cli import main
from extproc.shared_state.refusals import RIGHTS
from loadgen.engine.options import MODEL_DIR
from loadgen.stack.envoy_config import EnvoySettings, render
from loadgen.stack.parts import Engine
from loadgen.stack.processes import free_port
from tests.support.redis_server import WHEEL, RedisServer, redis_server


@dataclass(frozen=True, slots=True)
class Parts:
    """What runs: two engines of one model, one of another, a Redis with users, and its replica."""

    good: tuple[Engine, Engine]
    stranger: Engine
    redis: RedisServer
    replica: RedisServer


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    directory = tmp_path_factory.mktemp("parts")
    engines = [Engine(number, directory, (), events=True) for number in range(2)]
    stranger = Engine(2, directory, ("--model-name", "other"), events=True)
    with ExitStack() as stack:
        for engine in (*engines, stranger):
            stack.callback(engine.stop)
            engine.start()
        files = ("--dir", str(directory))  # of what is copied to the replica
        redis = stack.enter_context(redis_server(WHEEL, *files))
        replica = stack.enter_context(redis_server(WHEEL, *files, "--replicaof", "127.0.0.1", str(redis.port)))
        rights = RIGHTS.format("smetric").split()
        for user, less in (("router", ""), ("narrow", "-evalsha"), ("reader", "-hset"), ("deaf", "resetchannels")):
            assert redis.send("ACL", "SETUSER", user, "on", ">geheim", *rights, *less.split()) == b"+OK\r\n"
        for engine in (*engines, stranger):
            engine.wait_ready()
        yield Parts((engines[0], engines[1]), stranger, redis, replica)


class Deployment:
    """An Envoy YAML for these parts, to be changed by a test; and what `check --live` says of it."""

    def __init__(self, parts: Parts, directory: Path) -> None:
        self.parts = parts
        self._directory = directory
        endpoints = [self.endpoint(engine) for engine in parts.good]
        settings = EnvoySettings(
            port=free_port(),
            admin_port=free_port(),
            access_log=directory / "access.log",
            model_dir=MODEL_DIR,
            engines=endpoints,
            extproc_ports=[free_port()],
            health_port=free_port(),
        )
        self.yaml: dict[str, Any] = yaml.safe_load(render(settings))
        (self.cluster,) = (one for one in self.yaml["static_resources"]["clusters"] if one["name"] == "engines")
        self.endpoints: list[dict[str, Any]] = self.cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
        self.options: tuple[str, ...] = ()

    @staticmethod
    def endpoint(engine: Engine) -> dict[str, Any]:
        """An engine as the configuration names it."""
        events, replay = (f"tcp://127.0.0.1:{port}" for port in (engine.events_port, engine.replay_port))
        return {"port": engine.port, "kv_events": events, "kv_replay": replay}

    @property
    def smetric(self) -> dict[str, Any]:
        """The pool's metadata."""
        found: dict[str, Any] = self.cluster["metadata"]["filter_metadata"]["smetric"]
        return found

    def of(self, number: int) -> dict[str, Any]:
        """An endpoint's metadata."""
        found: dict[str, Any] = self.endpoints[number]["metadata"]["filter_metadata"]["smetric"]
        return found

    def move(self, number: int, *, host: str | None = None, port: int | None = None) -> None:
        """Another address for an endpoint."""
        address = self.endpoints[number]["endpoint"]["address"]["socket_address"]
        address |= {"address": host or address["address"], "port_value": port or address["port_value"]}

    def index(self, user: str, server: RedisServer | None = None, options: str = "") -> None:
        """The index is there, by this user and password."""
        at = (server or self.parts.redis).url.partition("://")[2]
        self.options = ("--index", f"redis://{user}@{at}{options}")

    def arguments(self) -> list[str]:
        """Of the command."""
        file = self._directory / "envoy.yaml"
        file.write_text(yaml.dump(self.yaml, sort_keys=False))
        return ["check", str(file), "--live", *self.options]


@pytest.fixture
def deployment(parts: Parts, tmp_path: Path) -> Deployment:
    return Deployment(parts, tmp_path)


def test_a_deployment_that_is_well(deployment: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything that answers is named, and the status is 0."""
    deployment.smetric["models"] = ["tiny"]
    deployment.index("router:geheim")
    assert main(deployment.arguments()) == 0
    told = capsys.readouterr().out
    one = deployment.parts.good[0]
    assert f"engines {one.address}: answers GET /health with 200; serves tiny; makes the same prompt as" in told
    assert f"engines {one.address} events tcp://127.0.0.1:{one.events_port}: a PUB socket" in told
    assert f"engines {one.address} replay tcp://127.0.0.1:{one.replay_port}: answers" in told
    assert f"index 127.0.0.1:{deployment.parts.redis.port}: takes reads, writes, leases and loads" in told
    assert told.count("nothing listens there yet") == 2  # the server itself: its port, and the one of its health
    assert "geheim" not in told
    assert "\nNone of " in told


def wrong_port(it: Deployment) -> str:
    """The endpoint's port is the one of its events."""
    port = it.parts.good[0].events_port
    it.move(0, port=port)
    return f"engines 127.0.0.1:{port}: it does not speak HTTP"


def closed_port(it: Deployment) -> str:
    """The engine is not there."""
    port = free_port()
    it.move(1, port=port)
    return f"engines 127.0.0.1:{port}: nothing listens there"


def wrong_model_directory(it: Deployment) -> str:
    """Of another model: its chat template begins otherwise, from the second byte on."""
    shutil.copytree(MODEL_DIR, it._directory / "model")
    template = it._directory / "model" / "chat_template.jinja"
    template.write_text("<s>" + template.read_text())
    it.smetric["model_dir"] = str(it._directory / "model")
    return f"engines {it.parts.good[0].address}: makes another prompt than model_dir: at byte 1"


def missing_model_directory(it: Deployment) -> str:
    """There is none."""
    it.smetric["model_dir"] = "/nowhere"
    return "model_dir /nowhere is no directory"


def wrong_redis_password(it: Deployment) -> str:
    """Redis knows the user."""
    it.index("router:falsch")
    return f"index 127.0.0.1:{it.parts.redis.port}: WRONGPASS invalid username-password pair"


def no_redis_password(it: Deployment) -> str:
    """The default user has none, and this one no access without."""
    it.parts.redis.send("CONFIG", "SET", "requirepass", "geheim")
    it.index("")
    return f"index 127.0.0.1:{it.parts.redis.port}: NOAUTH Authentication required"


def engine_of_another_model(it: Deployment) -> str:
    """`models` says what the pool serves."""
    it.smetric["models"] = ["tiny"]
    it.move(1, port=it.parts.stranger.port)
    return f"engines {it.parts.stranger.address}: serves other, and models of the pool is tiny"


def one_engine_of_another_model(it: Deployment) -> str:
    """Nothing says what the pool serves, but most of it agrees."""
    it.endpoints.append(copy.deepcopy(it.endpoints[0]))
    it.move(2, port=it.parts.stranger.port)
    it.of(2).update({key: value for key, value in it.endpoint(it.parts.stranger).items() if key != "port"})
    return f"engines {it.parts.stranger.address}: serves other, and 2 of its pool tiny"


def events_port_that_speaks_http(it: Deployment) -> str:
    """The engine's own port."""
    port = it.parts.good[0].port
    it.of(0)["kv_events"] = f"tcp://127.0.0.1:{port}"
    return f"events tcp://127.0.0.1:{port}: this is no ZMQ: it speaks HTTP"


def closed_events_port(it: Deployment) -> str:
    """vLLM publishes nothing without --kv-events-config."""
    port = free_port()
    it.of(0)["kv_events"] = f"tcp://127.0.0.1:{port}"
    return f"events tcp://127.0.0.1:{port}: nothing listens there"


def wrong_replay_port(it: Deployment) -> str:
    """Another engine's events."""
    port = it.parts.stranger.events_port
    it.of(0)["kv_replay"] = f"tcp://127.0.0.1:{port}"
    return f"replay tcp://127.0.0.1:{port}: a PUB socket, which replays nothing"


def swapped_ports(it: Deployment) -> str:
    """Both are there, each in the other's place."""
    one = it.of(0)
    one["kv_events"], one["kv_replay"] = one["kv_replay"], one["kv_events"]
    return "kv_events and kv_replay name each other's ports: swap them"


def replay_port_of_redis(it: Deployment) -> str:
    """What waits for a line is asked in one."""
    port = it.parts.redis.port
    it.of(0)["kv_replay"] = f"tcp://127.0.0.1:{port}"
    return f"replay tcp://127.0.0.1:{port}: this is no ZMQ: it speaks Redis's protocol"


def unknown_name(it: Deployment) -> str:
    """Of an endpoint."""
    it.cluster["type"] = "STRICT_DNS"
    it.move(1, host="engine-9.invalid")
    return "engines name engine-9.invalid: "


def unknown_name_of_events(it: Deployment) -> str:
    """Of an address in our metadata."""
    it.of(1)["kv_events"] = "tcp://events.invalid:5557"
    return "engines name events.invalid: "


def unknown_name_of_redis(it: Deployment) -> str:
    """Of the index."""
    it.options = ("--index", "redis://redis.invalid:6379/0")
    return "index redis.invalid:6379: "


def redis_without_evalsha(it: Deployment) -> str:
    """The scripts themselves are forbidden."""
    it.index("narrow:geheim")
    return f"index 127.0.0.1:{it.parts.redis.port}: NOPERM this user has no permissions to run the 'evalsha' command"


def redis_without_hset(it: Deployment) -> str:
    """A command within the scripts is forbidden."""
    it.index("reader:geheim")
    return f"index 127.0.0.1:{it.parts.redis.port}: The user executing the script can't run this command"


def redis_without_channels(it: Deployment) -> str:
    """Routers would not hear of each other's loads, though the index works."""
    it.index("deaf:geheim")
    return "(asked to tell loads, hear loads)"


def redis_replica(it: Deployment) -> str:
    """It answers, and takes no writes."""
    it.index("", it.parts.replica)
    return f"index 127.0.0.1:{it.parts.replica.port}: READONLY You can't write against a read only replica."


def redis_that_is_not_there(it: Deployment) -> str:
    """Nothing listens."""
    port = free_port()
    it.options = ("--index", f"redis://127.0.0.1:{port}/0")
    return f"index 127.0.0.1:{port}: nothing listens there"


def cluster_that_is_none(it: Deployment) -> str:
    """One server, asked as a cluster."""
    it.index("router:geheim", options="?cluster=true")
    return f"index 127.0.0.1:{it.parts.redis.port}: "


def foreign_server_at_our_port(it: Deployment) -> str:
    """Envoy would send its streams to an engine."""
    (one,) = (one for one in it.yaml["static_resources"]["clusters"] if one["name"] == "extproc")
    endpoint = one["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    endpoint["address"]["socket_address"]["port_value"] = it.parts.good[0].port
    return f"ext_proc {it.parts.good[0].address}: what listens there is no ext_proc server"


BROKEN = (
    wrong_port,
    closed_port,
    wrong_model_directory,
    missing_model_directory,
    wrong_redis_password,
    engine_of_another_model,
    one_engine_of_another_model,
    events_port_that_speaks_http,
    closed_events_port,
    wrong_replay_port,
    swapped_ports,
    replay_port_of_redis,
    unknown_name,
    unknown_name_of_events,
    unknown_name_of_redis,
    redis_without_evalsha,
    redis_without_hset,
    redis_without_channels,
    redis_replica,
    redis_that_is_not_there,
    cluster_that_is_none,
    foreign_server_at_our_port,
    no_redis_password,  # the last: from then on the default user has one
)


@pytest.mark.parametrize("mistake", BROKEN, ids=lambda mistake: mistake.__name__)
def test_a_broken_deployment(
    deployment: Deployment, mistake: Callable[[Deployment], str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The status is 1, and exactly the one that is wrong fails, with its remedy and without a secret."""
    expected = mistake(deployment)
    assert main(deployment.arguments()) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert expected in told
    assert "geheim" not in told
    assert "falsch" not in told
    if mistake is not missing_model_directory:  # which the check without --live finds
        assert told.count("->") == told.count("FAILED ") > 0


def test_the_command_as_a_process(deployment: Deployment) -> None:
    """An operator's shell sees the status, the report, and nothing on standard error."""
    closed_port(deployment)
    command = [sys.executable, "-m", "extproc", *deployment.arguments()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "1 of " in result.stdout.splitlines()[-1]
    assert not result.stderr
