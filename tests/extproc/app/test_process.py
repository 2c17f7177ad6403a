"""`python -m extproc` as the process that an operator meets: what it prints when something is wrong, how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support import envoy_yaml, redis_server
from tests.support.paths import ROOT

SERVE = ("serve", "--envoy-yaml", str(ROOT / "envoy" / "envoy.yaml"))
ANYWHERE = ("--health", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
# Python runs this before anything else: whoever runs the tests may ignore Ctrl-C, which children inherit.
FOREGROUND = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
"""
# A resolver that takes longer than any test.
SLOW_RESOLVER = """
import socket, time
def getaddrinfo(*_, **__):
    time.sleep(600)
socket.getaddrinfo = getaddrinfo
"""


# An import that takes longer than any test.
SLOW_IMPORT = """
import sys, time
class Slow:
    def find_spec(self, name, *_):
        if name == "NAME":
            print("importing", flush=True)
            time.sleep(600)
sys.meta_path.insert(0, Slow())
"""


class Process:
    """One command, its whole output in a file."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "log"
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        *arguments: str,
        before: str = "",
        python: Sequence[str] = (),
        module: str = "extproc",
        through: Sequence[str] = (),
    ) -> None:
        (self._directory / "sitecustomize.py").write_text(FOREGROUND + before)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*through, sys.executable, *python, "-m", module, *arguments],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(self._directory), "PYTHONUNBUFFERED": "1"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._log.read_text()

    def read_until(self, word: str, times: int = 1) -> None:
        deadline = time.monotonic() + 60
        while self.output.count(word) < times:
            assert time.monotonic() < deadline, self.output
            time.sleep(0.02)

    def read_until_listening(self, port: int) -> None:
        """For a process whose log says nothing."""
        deadline = time.monotonic() + 60
        while True:
            assert self.running, self.output
            assert time.monotonic() < deadline
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.05)

    def standard_files(self) -> set[str]:
        """What the three are: socket, pipe, anon_inode, or a path."""
        assert self._process
        files = (Path(f"/proc/{self._process.pid}/fd/{number}").readlink() for number in (0, 1, 2))
        return {str(file).partition(":")[0] for file in files}

    def send(self, number: int) -> None:
        assert self._process
        self._process.send_signal(number)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def children(self) -> dict[int, str]:
        """Their command lines, by process id."""
        assert self._process
        pid = self._process.pid
        found = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return {child: Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ") for child in found}

    def end(self, number: int = signal.SIGTERM) -> int:
        """Its status; a process that does not end fails the test."""
        self.send(number)
        return self.wait()

    def wait(self) -> int:
        assert self._process
        return self._process.wait(timeout=60)  # it may have to start first

    def kill(self) -> None:
        if self._process and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path)
    yield process
    process.kill()


@pytest.mark.parametrize("before", [SLOW_RESOLVER, ""], ids=["silent resolver", "unknown name"])
def test_redis_by_a_name_that_does_not_resolve(process: Process, before: str) -> None:
    """Each process says once which Redis is away, without its password; nothing else is logged about it, and SIGTERM
    ends all of them whatever the resolver does."""
    process.start(
        *SERVE, *ANYWHERE, "--listen", "127.0.0.1:0", "--index", "redis://:geheim@redis.invalid:6379/0", before=before
    )
    process.read_until("is away", times=2)
    time.sleep(1.0)  # the links look again and again meanwhile
    assert process.end() == 0
    said = process.output
    away = [line for line in said.splitlines() if "is away" in line]
    assert len(away) == 2, said  # serve and its follower
    assert all("Redis at redis.invalid:6379 is away (" in line for line in away)
    assert all("deciding by load until it is back" in line for line in away)
    if not before:
        assert all("does not resolve" in line for line in away)
    for wrong in ("ERROR", "Traceback", "never retrieved", "geheim"):
        assert wrong not in said


def test_a_busy_port_is_told_once(process: Process) -> None:
    """The flag, the address and what to look for, after the moment in which who is there may end; gRPC's own words
    stay out."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        process.start(*SERVE, *ANYWHERE, "--listen", address)
        assert process.wait() == 1
    waiting, told = process.output.splitlines()
    assert waiting.endswith(f"--listen: {address} is taken; waiting for it, at most 5 s")
    assert told == f"--listen: cannot listen on {address}; is another process there?"


def status(port: int, path: str, token: str = "") -> int:
    """Of one answer."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urlopen(Request(f"http://127.0.0.1:{port}{path}", headers=headers), timeout=20) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def test_metrics_and_debug_apart(process: Process, tmp_path: Path) -> None:
    """Each at its address, `/debug` for those who show the token, which no log shows."""
    metrics, debug = (redis_server.free_port() for _ in range(2))
    tokens = tmp_path / "tokens"
    tokens.write_text("geheim")
    apart = ("--metrics", f"127.0.0.1:{metrics}", "--debug", f"127.0.0.1:{debug}", "--debug-token-file", str(tokens))
    process.start(*SERVE, "--listen", "127.0.0.1:0", "--health", "127.0.0.1:0", *apart)
    process.read_until("serving ext_proc")
    assert (status(metrics, "/metrics"), status(metrics, "/debug/state", "geheim")) == (200, 404)
    assert (status(debug, "/metrics"), status(debug, "/debug/state")) == (404, 401)
    assert status(debug, "/debug/state", "geheim") == 200
    assert process.end() == 0
    assert "geheim" not in process.output


@pytest.mark.parametrize("slow", ["extproc.cli", "extproc.cli.serve", "extproc.config", "uvloop"])
def test_ctrl_c_during_imports(process: Process, slow: str) -> None:
    """Interrupted before anything is started, a command ends with 130 and no traceback out of an import."""
    process.start(*SERVE, before=SLOW_IMPORT.replace("NAME", slow))
    process.read_until("importing")
    assert process.end(signal.SIGINT) == 130
    assert "Traceback" not in process.output, process.output


def test_ctrl_c_during_imports_of_the_load_generator(process: Process) -> None:
    """The same of `python -m loadgen`."""
    process.start("--help", before=SLOW_IMPORT.replace("NAME", "loadgen.cli"), module="loadgen")
    process.read_until("importing")
    assert process.end(signal.SIGINT) == 130
    assert "Traceback" not in process.output, process.output


def test_a_python_without_our_dependencies_is_told_what_to_do(process: Process) -> None:
    """A stranger's first try with the system's Python: one line, no traceback."""
    process.start(*SERVE, python=["-S"])
    assert process.wait() == 1
    assert "run `make run` once or `pip install .`, then `.venv/bin/python -m extproc" in process.output
    assert "Traceback" not in process.output, process.output


@pytest.mark.parametrize("early", [True, False], ids=["while it imports", "while it serves"])
def test_sighup_ends_nothing(process: Process, early: bool) -> None:
    """Its default would end the process without a drain. The Envoy YAML is read again, which the log says."""
    process.start(
        *SERVE, *ANYWHERE, "--listen", "127.0.0.1:0", before=SLOW_IMPORT.replace("NAME", "uvloop") if early else ""
    )
    process.read_until("importing" if early else "serving ext_proc")
    process.send(signal.SIGHUP)
    if early:
        time.sleep(0.5)
        assert process.running
        return
    process.read_until("read again, nothing in it has changed")
    assert process.end() == 0
    assert "draining 0 streams" in process.output


def test_a_child_gets_the_settings_that_were_checked(process: Process, tmp_path: Path) -> None:
    """An operator's half-done edit does not meet a worker or any other child that is started again; and no command line
    shows the password of the index, wherever it was given."""
    yaml = envoy_yaml.write(envoy_yaml.clean(), tmp_path)
    secret = tmp_path / "index"
    with redis_server.redis_server(redis_server.WHEEL, "--requirepass", "geheim") as server:
        secret.write_text(server.url.replace("://", "://:geheim@") + "\n")
        listen = f"127.0.0.1:{redis_server.free_port()}"
        options = ("--index-file", str(secret), "--workers", "2", "--listen", listen)
        process.start("serve", "--envoy-yaml", str(yaml), *ANYWHERE, *options)
        process.read_until("serving ext_proc", times=2)
        first = process.children()
        assert len(first) == 3, "another worker, a follower, and what reads large bodies"
        assert not any("geheim" in command for command in first.values())
        yaml.write_text(yaml.read_text()[:200])
        secret.unlink()
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        process.read_until("serving ext_proc", times=3)
        assert process.output.count("ended with status -9") == 2
        while sorted(process.children().values()) != sorted(first.values()):
            time.sleep(0.05)  # until the test's own timeout
        assert process.end() == 0
        assert "Traceback" not in process.output, process.output


@pytest.mark.parametrize("redirection", [">/dev/full 2>&1", "<&- >&- 2>&-"])
def test_a_log_that_cannot_be_written(process: Process, tmp_path: Path, redirection: str) -> None:
    """A full disk, or no log at all: it serves all the same, and no socket gets the number of a standard file, where
    whatever is said to it would go."""
    ready = redis_server.free_port()
    command = f'exec "$@" {redirection}'
    listen = ("--listen", f"127.0.0.1:{ready}", "--health", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    process.start(*SERVE, *listen, through=["sh", "-c", command, "sh"])
    process.read_until_listening(ready)
    assert process.standard_files() & {"socket", "anon_inode"} == set()
    assert process.end() == 0
