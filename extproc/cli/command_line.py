"""Choosing a command: one module of this package each; a new one is a new file and a line in `COMMANDS`.

Only the module of the chosen command is imported, and each imports what it runs with when it runs: `--help` waits for
nothing that it does not need. A module has `DESCRIPTION`, `add_arguments(parser)` and `run(arguments)`, which returns
the exit status.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final

from extproc import __version__
from extproc.app import log

COMMANDS: Final[Mapping[str, str]] = {
    "serve": "serve Envoy",
    "follow": "feed a shared index",
    "check": "judge an Envoy YAML",
    "policies": "list the policies",
    "explain": "say why a request goes where it goes",
}

_EPILOG = """\
examples:
  python -m extproc check envoy.yaml
  python -m extproc serve --envoy-yaml envoy.yaml
  python -m extproc serve --envoy-yaml envoy.yaml --index redis://127.0.0.1:6379/0 --workers 4

Pools, instances and policy are configured in the Envoy YAML itself (docs/drop-into-your-envoy.md).
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 2 also where what it prints cannot be written."""
    chosen = parse(arguments)
    log.configure(chosen.log_level)
    try:
        status: int = chosen.run(chosen)
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:  # of standard output: commands tell of the files that they read themselves
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # it is written to once more at the end
        if not isinstance(error, BrokenPipeError):  # who reads no more, as `head`, need not be told
            print(f"standard output: {error.strerror or error}", file=sys.stderr)
        return 2
    return status


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The chosen command as `run` beside its options. Exits with help, or where the usage is wrong."""
    given = sys.argv[1:] if arguments is None else arguments
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "extproc",
        description="Route agents' LLM requests through Envoy: balanced once, then kept where their KV cache is.",
        epilog=_EPILOG,
        formatter_class=formatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, line in COMMANDS.items():
        command = commands.add_parser(name, help=line, formatter_class=formatter)
        if name in given[:1]:
            module = import_module(f"extproc.cli.{name}")
            command.description = module.DESCRIPTION
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser.parse_args(given)
