"""What a start costs, in CPU seconds: `python -m bench.start`. Every command, every worker and every restart pays it.

The measure is a Python in the same environment that imports the libraries which the product stands on and does
nothing. Runs take turns, and only the ratios within one run mean something. A worker is a child of `serve` from its
exec until it serves, on a real Redis; `serve` is the first process, which reads the Envoy YAML too.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from extproc import config
from extproc.app.child_job import ChildJob, Role
from extproc.app.options import Address, Options
from extproc.config import Discovery, Settings
from loadgen.stack.parts import Redis

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ROOT / "envoy" / "envoy.yaml"
LIBRARIES = "import grpc, yaml, jinja2, msgspec, redis, zmq, aiohttp, tokenizers, uvloop"
ANYWHERE = Address("127.0.0.1", 0)
READY = b"serving ext_proc"
LIMITS = {"--help": 0.4, "check envoy.yaml": 2.0, "worker": 3.0}  # times the libraries


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=5, help="of each, in turn; default %(default)s")
    runs = parser.parse_args().runs
    spent: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        redis = Redis(Path(directory))
        redis.start()
        redis.wait_ready()
        try:
            for _ in range(runs + 1):  # the first one fills caches and is not counted
                for name, seconds in _round(redis.url):
                    spent.setdefault(name, []).append(seconds)
        finally:
            redis.stop()
    medians = {name: statistics.median(seconds[1:]) for name, seconds in spent.items()}
    print(f"{'':<20} {'CPU s':>7} {'ratio':>7}  at most")
    for name, seconds in medians.items():
        limit = f"{LIMITS[name]:g}x" if name in LIMITS else ""
        print(f"{name:<20} {seconds:>7.2f} {seconds / medians['the libraries']:>6.2f}x  {limit}")


def _round(redis: str) -> Sequence[tuple[str, float]]:
    python = sys.executable
    settings = _local(config.load(SHIPPED))
    options = Options(ANYWHERE, ANYWHERE, ANYWHERE, redis, workers=1, drain_timeout_s=0.0, follow=False)
    child = (python, "-m", "extproc.app.child")
    serve: tuple[str, ...] = (python, "-m", "extproc", "serve", "--envoy-yaml", str(SHIPPED), "--listen", str(ANYWHERE))
    serve = (*serve, "--health", str(ANYWHERE), "--metrics", str(ANYWHERE), "--index", redis, "--no-follow")
    return (
        ("the libraries", _cpu((python, "-c", LIBRARIES))),
        ("--help", _cpu((python, "-m", "extproc", "--help"))),
        ("check envoy.yaml", _cpu((python, "-m", "extproc", "check", str(SHIPPED)))),
        ("worker", _cpu((*child, "serve", "1"), ChildJob(Role.SERVE, settings, options), until=READY)),
        ("serve", _cpu(serve, until=READY)),
    )


def _local(settings: Settings) -> Settings:
    """The shipped engines at addresses that need no resolver."""
    pools = {
        name: replace(
            pool,
            discovery=Discovery.STATIC,
            endpoints=tuple(replace(each, host=f"127.0.0.{n}") for n, each in enumerate(pool.endpoints, 1)),
        )
        for name, pool in settings.pools.items()
    }
    return replace(settings, pools=pools)


def _cpu(command: Sequence[str], job: ChildJob | None = None, until: bytes = b"") -> float:
    """CPU seconds of a process, all its threads, until it ends or logs `until`."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stdin
    assert process.stderr
    if job is not None:
        process.stdin.write(job.packed())
        process.stdin.flush()
    said = b""
    for line in process.stderr:
        said += line
        if until and until in line:
            process.send_signal(signal.SIGKILL)
            break
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    with suppress(BrokenPipeError):
        process.stdin.close()
    process.stderr.close()
    if process.returncode != (-signal.SIGKILL if until else 0):
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {said.decode()}")
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
