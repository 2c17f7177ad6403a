"""`extproc explain` as a process."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from extproc.admin.explain import Explanation
from extproc.admin.http import Admin
from extproc.cli import main
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


async def test_a_server_that_wants_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told what to give, and then explains."""

    async def state() -> Mapping[str, Any]:
        return {}

    async def explain(_about: Mapping[str, str], _body: bytes) -> Mapping[str, Any]:
        return Explanation(path="/x", model=None, pool="p", policy="smetric", options={}, choice="chosen").json()

    (tmp_path / "body").write_bytes(FOLLOW_UP)
    admin = Admin(state, explain, tokens=("geheim",))
    port = await admin.start("127.0.0.1", 0)
    ask = ["explain", "--envoy-yaml", "x", str(tmp_path / "body"), "--state", f"http://127.0.0.1:{port}"]
    assert await asyncio.to_thread(main, ask) == 1
    assert "SMETRIC_DEBUG_TOKEN" in capsys.readouterr().err
    monkeypatch.setenv("SMETRIC_DEBUG_TOKEN", "geheim")
    assert await asyncio.to_thread(main, ask) == 0
    assert "choice     chosen" in capsys.readouterr().out
    await admin.close()
