"""The command line: one sub-command per module of `loadgen.commands`; a new one is a new file and a line here."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from loadgen.commands import CommandError, demo, engine

COMMANDS = (demo, engine)
INTERRUPTED = 130  # what a shell reports of a process that SIGINT ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command: 0 done, 1 it failed and said why, 2 wrong usage, 130 interrupted."""
    parser = argparse.ArgumentParser(
        prog="loadgen",
        description="Agent workloads, simulated vLLM engines, and a demonstration of the router on them.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in COMMANDS:
        name = module.__name__.rpartition(".")[2]
        command = commands.add_parser(
            name, help=module.HELP, description=module.DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code: int = args.run(args)
    except CommandError as error:
        print(f"loadgen: {error}", file=sys.stderr)  # noqa: T201 - a command line speaks to its user
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _terminate(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM unwinds like Ctrl-C, so that whatever was started is stopped."""
    signal.raise_signal(signal.SIGINT)
