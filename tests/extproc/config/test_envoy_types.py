"""Envoy's types without pydantic's validators: what is read does not depend on them."""

from __future__ import annotations

import subprocess
import sys

import pydantic.dataclasses

from extproc.config.envoy_types import Cluster
from tests.support.paths import ROOT

CHECK = "from extproc.cli import main; sys.exit(main(['check', 'envoy/envoy.yaml']))"
BEFORE = "import sys, warnings; warnings.simplefilter('ignore'); import envoy_data_plane.envoy.config.cluster.v3 as c; "
BEFORE += "assert c.Cluster.__pydantic_validator__; "


def test_the_types_have_no_validators() -> None:
    """Compiling them is dearer than everything else that a command does."""
    assert not pydantic.dataclasses.is_pydantic_dataclass(Cluster)


def test_pydantic_is_left_as_it_was() -> None:
    """What is imported later gets its validators."""

    @pydantic.dataclasses.dataclass
    class Other:
        number: int

    assert pydantic.dataclasses.is_pydantic_dataclass(Other)
    assert Other("5").number == 5  # type: ignore[arg-type]


def test_types_that_have_validators_are_read_as_well() -> None:
    """Another part of the process may have imported them before; the report is the same."""
    reports = {
        subprocess.run([sys.executable, "-c", program + CHECK], cwd=ROOT, capture_output=True, check=True).stdout
        for program in ("import sys; ", BEFORE)
    }
    assert len(reports) == 1
