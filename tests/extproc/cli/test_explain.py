"""`extproc explain` as a process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support import envoy_yaml

SECRET = "the launch code is 0000"  # stands for whatever people write to a model
ROLES = ("user", "assistant", "user")
FOLLOW_UP = json.dumps({"messages": [{"role": role, "content": f"{SECRET} " * 50} for role in ROLES]}).encode()


def test_the_command_works_without_a_server(tmp_path: Path) -> None:
    """Offline it renders: API, turn and lengths, and whatever is wrong is said on one line."""
    yaml = envoy_yaml.write(envoy_yaml.clean(), tmp_path)
    file = tmp_path / "body.json"
    file.write_bytes(FOLLOW_UP)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "extproc", "explain", "--envoy-yaml", str(yaml), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    told = run(str(file))
    assert told.returncode == 0, told.stderr
    assert "turn       1\n" in told.stdout
    assert "pool       engines by smetric (overload 2, overload_floor 1, hit_ratio 0.5)" in told.stdout
    assert "choice     engine-" in told.stdout
    assert "offline" in told.stdout
    assert "launch code" not in told.stdout
    assert run(str(tmp_path / "missing.json")).returncode == 2
    assert run(str(file), "--cluster", "elsewhere").returncode == 1
    refused = run(str(file), "--state", "http://127.0.0.1:9")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
