"""`make run` as its user meets it: it comes to its table, serves on demand, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.demo.kept import BODIES
from loadgen.stack.processes import free_port, listens
from loadgen.workloads.traces import load
from tests.support.paths import ROOT

SMALL = ["--sessions", "4", "--turns", "2", "--engines", "2"]


class Demo:
    """The command in a process of its own, in a temporary directory that marks all its children."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._process: subprocess.Popen[str] | None = None
        self.output = ""

    def start(self, *options: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "loadgen", "demo", *options],
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(self.directory), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def read_until(self, word: str) -> None:
        assert self._process
        assert self._process.stdout
        for line in self._process.stdout:
            self.output += line
            if word in line:
                return
        pytest.fail(f"{word!r} never came: {self.output}")

    def interrupt(self, number: int = signal.SIGINT) -> None:
        assert self._process
        self._process.send_signal(number)

    def wait(self) -> int:
        assert self._process
        rest, _ = self._process.communicate(timeout=90)
        self.output += rest
        return self._process.returncode

    def left_behind(self) -> list[str]:
        """Command lines of processes that this demo started and that still run."""
        mark = f"TMPDIR={self.directory}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return found


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    demo = Demo(tmp_path)
    yield demo
    if demo._process and demo._process.poll() is None:
        demo._process.kill()
        demo._process.wait()
    assert demo.left_behind() == []
    assert list(tmp_path.iterdir()) == []


def test_it_ends_with_a_comparison(demo: Demo) -> None:
    """Without a terminal it prints lines and, at the end, both policies side by side; it says what is simulated."""
    demo.start("--sessions", "4", "--turns", "1", "--engines", "2")
    assert demo.wait() == 0
    assert demo.output.count("Simulated:") == 1
    assert re.search(r"smetric: 4/4 requests.*cache [\d.]+ %; first_turn 4", demo.output)
    table = demo.output[demo.output.index("the same workload") :]
    assert re.search(r"smetric\W+round-robin", table)
    assert re.search(r"requests, failed\W+4, 0\W+4, 0", table)
    assert re.search(r"first turns per instance\W+2 2\W+2 2", table)
    for row in ("prompt tokens found in the cache", "busiest / mean", "TTFT p50", "TTFT p90"):
        assert row in table


def test_what_it_keeps_becomes_workloads(demo: Demo, tmp_path_factory: pytest.TempPathFactory) -> None:
    """With --keep, Envoy's log, the bodies and the engines' logs each become the sessions that ran, by one command."""
    kept = tmp_path_factory.mktemp("kept")
    demo.start(*SMALL, "--policy", "smetric", "--keep", str(kept / "logs"))
    assert demo.wait() == 0
    logs = kept / "logs" / "smetric"
    for kind, source in (("access-log", "access.log"), ("bodies", BODIES), ("vllm-log", "")):
        done = subprocess.run(
            [sys.executable, "-m", "loadgen", "import", kind, str(logs / source), "-o", str(kept / f"{kind}.jsonl")],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        assert "4 requests go on from another" in done.stdout
        trace = load(kept / f"{kind}.jsonl")
        assert [request.turn for request in trace.requests].count(1) == 4
        assert len({request.session for request in trace.requests}) == 4


def test_an_end_in_the_middle_cleans_up(demo: Demo) -> None:
    """Told to end (SIGTERM) while sessions run, it says that it cleaned up and ends with 130; nothing keeps running."""
    demo.start("--sessions", "12", "--turns", "20", "--engines", "2")
    demo.read_until("per instance")
    assert len(demo.left_behind()) >= 5
    demo.interrupt(signal.SIGTERM)
    assert demo.wait() == 130
    assert "stopped; everything is cleaned up" in demo.output
    assert "Traceback" not in demo.output


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_ctrl_c_while_it_starts_cleans_up(demo: Demo, parts: int) -> None:
    """Interrupted while the parts come up, it ends with 130 as well."""
    demo.start(*SMALL)
    demo.read_until("sessions of")
    deadline = time.monotonic() + 30
    while len(demo.left_behind()) < parts:
        assert time.monotonic() < deadline
    demo.interrupt()
    assert demo.wait() == 130
    assert "Traceback" not in demo.output


def test_it_serves_for_curl(demo: Demo) -> None:
    """With --serve everything stays up until Ctrl-C, which is a good end. The two printed questions are a session's
    first turn and its follow-up, an engine that says its name answers, and the printed log tells both decisions."""
    port = free_port()
    demo.start("--serve", "--engines", "2", "--port", str(port))
    demo.read_until("/clusters")
    questions = re.findall(r"curl -si (\S+) -H '([^:]+): ([^']+)' -d @(\S+)", demo.output)
    log = re.search(r"tail -n 2 (\S+)", demo.output)
    assert log
    reasons: list[str] = []
    for url, header, value, path in questions:
        request = urllib.request.Request(url, data=Path(path).read_bytes(), headers={header: value})
        with urllib.request.urlopen(request, timeout=20) as response:
            assert response.headers["x-engine"]
            assert json.load(response)["choices"][0]["message"]["content"]
        deadline = time.monotonic() + 20
        while len(lines := Path(log[1]).read_text().splitlines()) <= len(reasons):
            assert time.monotonic() < deadline
        reasons.append(json.loads(lines[-1])["smetric"]["reason"])
    assert reasons == ["first_turn", "stick"]
    for other in re.findall(r"curl -s (\S+)", demo.output):
        with urllib.request.urlopen(other, timeout=20) as response:
            assert response.status == 200
    demo.interrupt()
    assert demo.wait() == 0
    assert "stopped; everything is cleaned up" in demo.output
    assert not listens(port)


def test_a_taken_port_is_explained(demo: Demo) -> None:
    """The message is a command that works instead."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        demo.start("--serve", "--port", str(port))
        assert demo.wait() == 1
    assert f'make run ARGS="--serve --port {port + 1}"' in demo.output


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--policy", "smetric,nonsense"], "nonsense: there is no such policy, but"),
        (["--sessions", "0"], "positive"),
        (["--port", "99999"], "65535"),
    ],
)
def test_wrong_options_are_explained(demo: Demo, options: list[str], word: str) -> None:
    """A wrong option ends it at once, with a message that names it and no traceback."""
    demo.start(*SMALL, *options)
    assert demo.wait() in (1, 2)
    assert word in demo.output
    assert "Traceback" not in demo.output
