"""Beside many engines: the open files of each of our processes, from the start on, and whether requests are decided.

The engines are sockets alone: events that never come, and replays that are answered at once, or not at all (--silent).
The soft limit of open files is set low, as many shells have it, so that what is raised is the work of `serve`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml
import zmq

from bench.chat import body
from bench.decision import cpu_s, free_ports, requests, wait
from loadgen.engine.options import MODEL_DIR
from loadgen.stack.envoy_config import HOST, EnvoySettings, render

END = (-1).to_bytes(8, "big", signed=True)
LOOK_S = 0.1


def publish(count: int, *, silent: bool) -> None:
    """Be the engines until killed; the first line of the output tells their addresses."""
    context, poller = zmq.Context(), zmq.Poller()
    context.max_sockets = 4 * count + 16
    kept, engines = [], []
    for number in range(count):
        events, replay = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        for socket in (events, replay):
            socket.bind(f"tcp://{HOST}:*")
            kept.append(socket)
        poller.register(replay, zmq.POLLIN)
        addresses = [socket.getsockopt_string(zmq.LAST_ENDPOINT) for socket in (events, replay)]
        engines.append({"port": 1 + number, "kv_events": addresses[0], "kv_replay": addresses[1]})
    print(json.dumps(engines), flush=True)
    while True:
        for socket, _ in poller.poll():
            asker, *_question = socket.recv_multipart()
            if not silent:
                socket.send_multipart([asker, b"", END, b""])


def processes(pid: int) -> Iterator[tuple[int, str]]:
    """`serve` and its children, as `ps` names them."""
    yield pid, "serve"
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
        yield child, " ".join(words[words.index("-m") + 1 :]) if "-m" in words else words[0]


def open_files(pid: int) -> Mapping[str, int]:
    counts: Counter[str] = Counter()
    for process, name in processes(pid):
        try:
            counts[name] = max(counts[name], len(list(Path(f"/proc/{process}/fd").iterdir())))
        except OSError:  # it has just ended
            continue
    return counts


def states(metrics: int) -> Mapping[str, int]:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{metrics}/debug/state", timeout=5) as answer:
            instances = json.load(answer)["pools"]["engines"]["instances"].values()
    except OSError:
        return {}
    return Counter((instance["events"] or {"state": "unknown"})["state"] for instance in instances)


def configured(engines: list[Mapping[str, object]], directory: Path) -> Path:
    rendered = yaml.safe_load(
        render(
            EnvoySettings(
                port=1,
                admin_port=2,
                access_log=directory / "log",
                model_dir=MODEL_DIR,
                engines=engines,
                extproc_ports=[3],
            )
        )
    )
    for cluster in rendered["static_resources"]["clusters"]:
        cluster.pop("health_checks", None)  # of engines that serve nothing
    path = directory / "envoy.yaml"
    path.write_text(yaml.safe_dump(rendered))
    return path


def measure(count: int, limits: str, seconds: float, engines: list[Mapping[str, object]], directory: Path) -> None:
    listen, health, metrics = free_ports(3)
    serve = ["sh", "-c", f'{limits}; exec "$@"', "sh", sys.executable, "-m", "extproc", "serve"]
    serve += ["--envoy-yaml", str(configured(engines, directory)), "--listen", f"{HOST}:{listen}"]
    serve += ["--health", f"{HOST}:{health}", "--metrics", f"{HOST}:{metrics}"]
    began = time.monotonic()
    with (directory / "serve.log").open("wb") as log:
        server = subprocess.Popen(serve, stdout=log, stderr=log)
    try:
        wait(server, f"{HOST}:{listen}")
        print(f"listens after {time.monotonic() - began:.1f} s")
        most: Counter[str] = Counter()
        known: Mapping[str, int] = {}
        wanted = time.monotonic() + seconds
        while time.monotonic() < wanted and known.get("exact", 0) < count:
            most |= Counter(open_files(server.pid))
            known = states(metrics)
            time.sleep(LOOK_S)
        print(f"after {time.monotonic() - began:.1f} s the engines are {dict(known)}")
        took = sorted(asyncio.run(requests(f"{HOST}:{listen}", body(20_000, 10), 200)))
        print(f"200 of 200 requests decided, p50 {took[100] * 1e3:.1f} ms, p99 {took[197] * 1e3:.1f} ms")
        time.sleep(2)
        now = open_files(server.pid)
        for name, files in (most | Counter(now)).items():
            print(
                f"{name}: {files} open files at most, {now.get(name, 0)} now, {now.get(name, 0) / count:.2f} an engine"
            )
        print("CPU", {name: round(cpu_s(pid), 1) for pid, name in processes(server.pid)})
    finally:
        server.terminate()
        server.wait()
    said = (directory / "serve.log").read_text()
    print(said[:1000], "...", said[-1000:], sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=1024)
    parser.add_argument("--silent", action="store_true", help="no replay is answered")
    parser.add_argument("--soft-limit", type=int, default=1024, help="of open files, at the start (%(default)s)")
    parser.add_argument("--hard-limit", type=int, help="the one that cannot be raised; as it is by default")
    parser.add_argument("--seconds", type=float, default=120.0, help="until the engines must be known (%(default)s)")
    parser.add_argument("--publish", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.publish:
        publish(arguments.engines, silent=arguments.silent)
    limits = f"ulimit -Sn {arguments.soft_limit}"
    if arguments.hard_limit is not None:
        limits += f"; ulimit -Hn {arguments.hard_limit}"
    command = [sys.executable, "-m", "bench.many_engines", "--publish", "--engines", str(arguments.engines)]
    command += ["--silent"] * arguments.silent
    publishing = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert publishing.stdout is not None
        engines = json.loads(publishing.stdout.readline())
        with tempfile.TemporaryDirectory() as directory:
            measure(arguments.engines, limits, arguments.seconds, engines, Path(directory))
    finally:
        publishing.kill()
        publishing.wait()


if __name__ == "__main__":
    main()
