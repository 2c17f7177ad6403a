"""The command line: every command explains itself, and only the chosen one is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from extproc.cli import command_line
from tests.support.paths import ROOT


@pytest.mark.parametrize("command", [[], ["serve"], ["follow"], ["check"], ["policies"]])
def test_help_teaches(command: list[str]) -> None:
    """Every command explains itself, as a real process."""
    result = subprocess.run(
        [sys.executable, "-m", "extproc", *command, "--help"], capture_output=True, text=True, check=True
    )
    assert "usage: extproc" in result.stdout
    assert not result.stderr


def test_only_the_chosen_command_is_imported() -> None:
    """Help waits for no library that it does not need, and `check` for nothing that serves."""
    for command, strangers in (
        ([], "extproc.app.serve extproc.config grpc msgspec yaml zmq redis aiohttp uvloop"),
        (["check"], "extproc.app.serve grpc zmq redis aiohttp uvloop"),
    ):
        program = "import sys; from extproc.cli import command_line\n"
        program += f"try: command_line.parse({[*command, '--help']})\n"
        program += "except SystemExit: print('loaded', *sys.modules)"
        told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        loaded = set(told.stdout.rpartition("loaded ")[2].split())
        assert loaded & set(strangers.split()) == set()
        assert f"extproc.cli.{command[0] if command else 'command_line'}" in loaded


def test_each_command_has_its_module() -> None:
    """The table names modules that have what a command needs."""
    for name in command_line.COMMANDS:
        with pytest.raises(SystemExit, match="0"):
            command_line.parse([name, "--help"])


@pytest.mark.parametrize("command", ["policies", "check envoy/envoy.yaml"])
def test_what_cannot_be_printed(command: str) -> None:
    """A full disk is told in one line; a reader that has seen enough, as `head`, hears nothing of it."""
    shell = f"{sys.executable} -m extproc {command}"
    told = subprocess.run(["sh", "-c", f"{shell} >/dev/full"], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (told.returncode, told.stderr) == (2, "standard output: No space left on device\n")
    told = subprocess.run(["sh", "-c", f"{shell} | head -c 1"], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (len(told.stdout), told.stderr) == (1, "")
