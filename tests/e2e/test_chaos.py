"""A short seed of `bench.chaos`, which runs for ten minutes: real Envoy, real Redis, fault after fault, under load."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

# One of each kind, of which so short a run has time for some.
FAULTS = ("engine-kill", "follower-kill", "redis-kill", "redis-garbage", "event-nonsense", "bodies", "grpc-confused")
QUICK = ("--minutes", "0.7", "--rate", "8", "--engines", "3", "--megabytes", "1", "--lasts", "0.3", "--seed", "3")


@pytest.mark.timeout(600)
def test_a_short_chaos_loses_no_request_and_leaves_nothing() -> None:
    """No request is lost, no load is left, no bug is caught and no process stays. How long a recovery takes is the
    machine's business."""
    chosen = [word for fault in FAULTS for word in ("--only", fault)]
    command = [sys.executable, "-m", "bench.chaos", *QUICK, *chosen]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    *faults, verdict = [json.loads(line) for line in run.stdout.splitlines()]
    kept = {name: verdict[name] for name in ("lost", "loads", "bugs", "left")}
    assert kept == {"lost": 0, "loads": 0, "bugs": {}, "left": []}, run.stderr
    assert verdict["requests"] > 0
    assert {one["fault"] for one in faults} <= set(FAULTS)
