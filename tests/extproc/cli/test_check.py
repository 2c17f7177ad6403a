"""`extproc check`: exit statuses and reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.cli import main
from tests.support.paths import ROOT

SHIPPED = ROOT / "envoy" / "envoy.yaml"


def test_check_explains_a_good_file(capsys: pytest.CaptureFixture[str]) -> None:
    """The shipped configuration is ready, and what was understood is said."""
    assert main(["check", str(SHIPPED)]) == 0
    assert "by default: pool engines by smetric" in capsys.readouterr().out


def test_check_tells_errors_from_unreadable_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """1: the file has errors; 2: there is no such file."""
    bad = tmp_path / "envoy.yaml"
    bad.write_text("static_resources: {clusters: [{name: x, metadata: {filter_metadata: {smetric: {modeldir: y}}}}]}")
    assert main(["check", str(bad)]) == 1
    assert "model_dir" in capsys.readouterr().out
    assert main(["check", str(tmp_path / "none.yaml")]) == 2
    assert "No such file" in capsys.readouterr().err
