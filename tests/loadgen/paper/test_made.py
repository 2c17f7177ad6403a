"""How a reproduction says that it was made."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.paper import made


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["paper", "--jobs", "2"], "python -m loadgen paper --jobs 2"),
        (["paper", "--out", "/here/out/paper"], "python -m loadgen paper --out out/paper"),
        (["paper", "--document=/here/docs/paper.md"], "python -m loadgen paper --document=docs/paper.md"),
        (["paper", "--out", "/home/someone/paper"], "python -m loadgen paper --out paper"),
        (["paper", "--out", "/here/my results"], "python -m loadgen paper --out 'my results'"),
    ],
)
def test_the_command_names_no_place_of_the_machine(arguments: list[str], command: str) -> None:
    """What the document shows can be typed anywhere: it has no path of the machine that it was made on."""
    assert made.command(arguments, Path("/here")) == command
