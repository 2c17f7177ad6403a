"""`make run` as its user meets it: it comes to its table, serves on demand, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.processes import free_port, listens

ROOT = Path(__file__).parent.parent.parent
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
    assert "Simulated:" in demo.output
    table = demo.output[demo.output.index("the same workload") :]
    assert re.search(r"smetric\W+round-robin", table)
    assert re.search(r"requests, failed\W+4, 0\W+4, 0", table)
    for row in ("prompt tokens found in the cache", "load, busiest instance / mean", "TTFT p50", "TTFT p90"):
        assert row in table


def test_an_end_in_the_middle_cleans_up(demo: Demo) -> None:
    """Told to end (SIGTERM) while sessions run, it ends with 130, without a traceback, and nothing keeps running."""
    demo.start("--sessions", "12", "--turns", "20", "--engines", "2")
    demo.read_until("per instance")
    assert len(demo.left_behind()) >= 5
    demo.interrupt(signal.SIGTERM)
    assert demo.wait() == 130
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
    """With --serve everything stays up until Ctrl-C, and the printed question is answered by an engine that says its
    name."""
    port = free_port()
    demo.start("--serve", "--engines", "2", "--port", str(port))
    demo.read_until("/clusters")
    command = re.search(r"curl -si (\S+) -H '([^:]+): ([^']+)' \\\n\s+-d '([^']+)'", demo.output)
    assert command
    url, header, value, body = command.groups()
    request = urllib.request.Request(url, data=body.encode(), headers={header: value})
    with urllib.request.urlopen(request, timeout=20) as response:
        assert response.headers["x-engine"]
        assert json.load(response)["choices"][0]["message"]["content"]
    for other in re.findall(r"curl -s (\S+)", demo.output):
        with urllib.request.urlopen(other, timeout=20) as response:
            assert response.status == 200
    demo.interrupt()
    assert demo.wait() == 130
    assert not listens(port)


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
