"""The command line: one sub-command per module of `loadgen.commands`; a new one is a new file and a line here.

Only the module of the command that is run is imported: an engine starts without what the demo needs.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword
from types import FrameType

from loadgen.command_error import CommandError
from loadgen.commands import INTERRUPTED

COMMANDS = {
    "study": "what a recorded or generated workload reuses, and how evenly it could be spread",
    "import": "a workload out of your own logs: Envoy's, vLLM's, or request bodies",
    "generate": "synthetic agent sessions by a seed, or recorded ones at another rate; with text for live replay",
    "demo": "agent sessions through a real Envoy: SMetric against round robin",
    "simulate": "a cluster on a virtual clock, with the product's own router",
    "sweep": "many simulations over all cores, and the maximum TPS within SLO of each policy",
    "paper": "the reproduction of the SMetric paper: simulations, tables, figures, docs/reproduction.md",
    "replay": "a workload through a live gateway, open or closed loop",
    "engine": "one simulated vLLM: OpenAI API, prefix cache, KV events",
    "sidecar": "a routing sidecar in front of a decode engine",
    "report": "tables, figures and one HTML page of runs and sweeps",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command: 0 done, 1 it failed and said why, 2 wrong usage, 130 interrupted."""
    parser = argparse.ArgumentParser(
        prog="loadgen",
        description="Agent workloads, simulated vLLM engines, and a demonstration of the router on them.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    arguments = sys.argv[1:] if argv is None else argv
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name in arguments[:1]:
            module = import_module(f"loadgen.commands.{name}{'_' * iskeyword(name)}")
            command.description = module.DESCRIPTION
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    args = parser.parse_args(arguments)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A script's background job inherits that, and would hear neither Ctrl-C nor, which goes the same way, SIGTERM.
        signal.signal(signal.SIGINT, signal.default_int_handler)
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
