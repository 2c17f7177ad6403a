"""The command line itself: how a command is told to end."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks /proc whether the command is at work")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_background_job_of_a_script_can_be_told_to_end(number: signal.Signals) -> None:
    """A shell starts background jobs with SIGINT ignored; both signals end a command all the same, with status 130."""
    command = [sys.executable, "-m", "loadgen", "simulate", "paper-trace-1", "--rate", "8", "--measure", "100000"]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited, as from a shell
    try:
        process = subprocess.Popen(command)
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        while not _handles(process.pid, signal.SIGTERM):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(timeout=30) == 130
    finally:
        process.kill()
        process.wait()


def _handles(pid: int, number: signal.Signals) -> bool:
    caught = re.search(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(caught and int(caught[1], 16) >> (number - 1) & 1)
