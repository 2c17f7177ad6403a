"""What a decision costs: latency and CPU of the real server over real gRPC, Envoy's part played by a gRPC client.

Measures the time from a request body sent to its answer received, one stream at a time, and the CPU time of the server
process per request (three messages: headers, body, response headers). An empty server, which answers without looking,
runs in the same rounds: the difference is ours. Rounds alternate, medians are reported.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc
import yaml
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from bench.chat import body
from loadgen.engine.options import MODEL_DIR
from loadgen.stack.envoy_config import HOST, EnvoySettings, render

ROOT = Path(__file__).resolve().parent.parent
METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def configuration(directory: Path, instances: int) -> Path:
    """The shipped Envoy YAML with so many engines, none of which exists: a decision needs no engine."""
    settings = EnvoySettings(
        port=1,
        admin_port=2,
        access_log=directory / "access.log",
        model_dir=MODEL_DIR,
        engines=[
            {"port": 20_000 + number, "kv_events": f"tcp://{HOST}:{21_000 + number}"} for number in range(instances)
        ],
        extproc_ports=[3],
    )
    shipped = yaml.safe_load(render(settings))
    for cluster in shipped["static_resources"]["clusters"]:
        cluster.pop("health_checks", None)  # of engines that do not exist
    path = directory / "envoy.yaml"
    path.write_text(yaml.safe_dump(shipped))
    return path


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def cpu_s(pid: int) -> float:
    """CPU time of a process, all its threads, in seconds (resolution 10 ms)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def messages(payload: bytes, path: str = "/v1/chat/completions") -> list[bytes]:
    """The three requests that Envoy sends for one exchange in BUFFERED mode."""
    headers = pb.ProcessingRequest()
    for key, value in ((":path", path), (":method", "POST"), ("content-type", "application/json")):
        headers.request_headers.headers.headers.add(key=key, raw_value=value.encode())
    headers.protocol_config.request_body_mode = 2
    text = pb.ProcessingRequest()
    text.request_body.body = payload
    text.request_body.end_of_stream = True
    response = pb.ProcessingRequest()
    response.response_headers.headers.headers.add(key=":status", raw_value=b"200")
    return [headers.SerializeToString(), text.SerializeToString(), response.SerializeToString()]


async def requests(target: str, payload: bytes, count: int, path: str = "/v1/chat/completions") -> list[float]:
    """Run exchanges one after the other; returns the seconds from body sent to answer received."""
    sequence, seconds = messages(payload, path), []
    metadata = (("x-smetric-cluster", "engines"),)
    async with grpc.aio.insecure_channel(target, options=[("grpc.max_send_message_length", -1)]) as channel:
        call: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(METHOD)
        for _ in range(count):
            stream = call(metadata=metadata)
            await stream.write(sequence[0])
            await stream.read()
            started = time.perf_counter()
            await stream.write(sequence[1])
            await stream.read()
            seconds.append(time.perf_counter() - started)
            await stream.write(sequence[2])
            await stream.read()
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF
    return seconds


def wait(process: subprocess.Popen[bytes], target: str) -> None:
    """Until it listens."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", int(target.rpartition(":")[2]))) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"nobody listens on {target}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    ports = free_ports(4)
    ours, empty = f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}"
    with tempfile.TemporaryDirectory() as directory:
        path = configuration(Path(directory), arguments.instances)
        serve = [sys.executable, "-m", "extproc", "serve", "--log-level", "warning", "--envoy-yaml", str(path)]
        serve += ["--no-follow", "--listen", ours, "--health", f"127.0.0.1:{ports[2]}"]
        serve += ["--metrics", f"127.0.0.1:{ports[3]}"]
        servers = [
            ("empty server", empty, [sys.executable, str(ROOT / "bench" / "empty_server.py"), empty]),
            ("extproc", ours, serve),
        ]
        running: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for name, target, command in servers:
                running[name] = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
                wait(running[name], target)
            print(
                f"{arguments.instances} instances, in-memory index, concurrency 1, medians of {arguments.rounds} rounds"
            )
            print(f"{'body':>8}  {'server':<13} {'p50 ms':>8} {'p99 ms':>8} {'CPU ms':>8}")
            for label, payload, count in (("1 KB", body(1_000, 3), 400), ("400 KB", body(400_000, 190), 100)):
                figures: dict[str, list[tuple[float, float, float]]] = {name: [] for name in running}
                for _ in range(arguments.rounds):
                    for name, target, _command in servers:
                        before = cpu_s(running[name].pid)
                        seconds = sorted(asyncio.run(requests(target, payload, count)))
                        spent = (cpu_s(running[name].pid) - before) / count
                        figures[name].append((statistics.median(seconds), seconds[int(count * 0.99)], spent))
                for name, rows in figures.items():
                    p50, p99, cpu = (statistics.median(column) * 1000 for column in zip(*rows, strict=True))
                    print(f"{label:>8}  {name:<13} {p50:>8.2f} {p99:>8.2f} {cpu:>8.2f}")
        finally:
            for process in running.values():
                os.killpg(process.pid, signal.SIGTERM)
            for process in running.values():
                process.wait(timeout=40)


if __name__ == "__main__":
    main()
