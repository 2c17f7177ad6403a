"""The command line, one module a command; only the module of the command that runs is imported."""

from __future__ import annotations

from extproc.cli.command_line import main

__all__ = ["main"]
