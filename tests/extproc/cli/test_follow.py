"""`extproc follow`: what it refuses before it follows anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.cli import main
from tests.support.paths import ROOT

SHIPPED = ROOT / "envoy" / "envoy.yaml"


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--envoy-yaml", str(SHIPPED), "--index", "memory://"], 1, "no other process reads it"),
        (["--envoy-yaml", str(SHIPPED), "--index", "mysql://x"], 1, "names no index"),
        (["--envoy-yaml", "none.yaml", "--index", "redis://127.0.0.1:1/0"], 2, "No such file"),
    ],
)
def test_what_cannot_be_followed_is_explained(
    options: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An index of its own would be of no use, and a wrong file is told as `check` tells it."""
    assert main(["follow", *options]) == status
    assert message in capsys.readouterr().err


def test_a_wrong_configuration_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the report of `check`."""
    bad = tmp_path / "envoy.yaml"
    bad.write_text(SHIPPED.read_text().replace("x-smetric-overload, value", "x-smetric-overlord, value"))
    assert main(["follow", "--envoy-yaml", str(bad), "--index", "redis://127.0.0.1:1/0"]) == 1
    assert "x-smetric-overlord" in capsys.readouterr().err
