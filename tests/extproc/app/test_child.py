"""A child of `serve`: what it need not import, and how it ends before it begins."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_a_child_reads_no_envoy_yaml() -> None:
    """Its settings come by the pipe, so that it does not wait for the types of Envoy."""
    program = "import sys, extproc.app.child; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "extproc.processor.server" in loaded
    assert {"envoy_data_plane", "betterproto2", "pydantic", "extproc.cli", "extproc.config.inspection"} & {
        *loaded
    } == set()


@pytest.mark.parametrize("said", ["", "hello, how are you?"])
def test_a_parent_that_is_gone_before_it_said_all(said: str) -> None:
    """There is nothing to do, and nothing to complain of; nor where somebody types into it."""
    command = [sys.executable, "-m", "extproc.app.child", "serve", "1"]
    ended = subprocess.run(command, input=said, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
