"""Open files: the limit is raised, and told where it is too low."""

from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import replace

from extproc import config
from extproc.app import open_files
from extproc.base.model import Source
from extproc.config import Endpoint, Settings
from extproc.instances import health_checks
from extproc.kv_events import replay_turns, sockets
from tests.support.paths import ROOT

SETTINGS = config.load(ROOT / "envoy" / "envoy.yaml")


def of(count: int, ranks: int = 1, source: Source = Source.EVENTS) -> Settings:
    endpoint = Endpoint("10.0.0.1", 8000, kv_events="tcp://10.0.0.1:5557", data_parallel_size=ranks)
    pool = replace(SETTINGS.pools["engines"], endpoints=(endpoint,) * count, source=source)
    return replace(SETTINGS, pools={"engines": pool})


def test_a_limit_that_is_too_low_is_told_with_its_numbers() -> None:
    """250 engines do not fit into the limit of many shells; who follows no events needs less."""
    told = open_files.shortage(of(250), 1024)
    assert told is not None
    assert f"{open_files.needed(of(250))} open files" in told
    assert "1024 are allowed" in told
    assert open_files.shortage(of(120), 1024) is None
    assert open_files.shortage(of(30, ranks=8), 1024) is not None
    assert open_files.shortage(of(250, source=Source.ROUTED), 1024) is None
    assert open_files.shortage(of(250), resource.RLIM_INFINITY) is None


def test_four_for_each_engine() -> None:
    """And a number that does not grow with them: replays and health checks take turns."""
    assert open_files.needed(of(2048)) - open_files.needed(of(1024)) == 4 * 1024
    assert open_files.needed(of(1024)) - open_files.needed(of(0)) <= 4.5 * 1024
    assert open_files.HEALTH_CHECKS == health_checks.CONCURRENCY


def test_who_has_enough_files_has_enough_sockets() -> None:
    """What is enough by the one reckoning is enough by the other: three sockets an engine, and those of replays."""
    for count in (128, 300, 1024, 5000):
        assert sockets.sockets_for(open_files.needed(of(count))) >= 3 * count + replay_turns.AT_ONCE
        assert sockets.sockets_for(4 * count) < 3 * count


def test_the_limit_is_raised_to_the_hard_one() -> None:
    """And children inherit it."""
    program = "from extproc.app import open_files; import resource, subprocess, sys; print(open_files.raise_limit());"
    program += "print(resource.getrlimit(resource.RLIMIT_NOFILE)); sys.stdout.flush();"
    program += "subprocess.run(['sh', '-c', 'ulimit -Sn'])"
    command = ["sh", "-c", 'ulimit -Sn 500; ulimit -Hn 2000; exec "$@"', "sh", sys.executable, "-c", program]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.split("\n")[:3] == ["2000", "(2000, 2000)", "2000"]


def test_check_warns_of_this_machine() -> None:
    """By the hard limit, which `serve` will raise the soft one to."""
    command = ["sh", "-c", 'ulimit -n 130; exec "$@"', "sh", sys.executable, "-m", "extproc", "check"]
    told = subprocess.run([*command, "envoy/envoy.yaml"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "warning: on this machine 156 open files are needed" in told.stdout
