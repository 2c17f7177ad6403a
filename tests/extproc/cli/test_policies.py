"""`extproc policies`."""

from __future__ import annotations

import pytest

from extproc.cli import main


def test_policies_are_listed_with_their_options(capsys: pytest.CaptureFixture[str]) -> None:
    """Names, formulas and options, each from the policy's own file."""
    assert main(["policies"]) == 0
    listed = capsys.readouterr().out
    assert "x-smetric-hit-ratio: 0.5 by default" in listed
    assert "f = (prompt - hit) * (load + idle)" in listed
