"""`extproc check`: what an Envoy YAML means to us, and what is wrong with it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from extproc.cli import options

DESCRIPTION = """\
Explain what an Envoy YAML means to the processor, and every mistake in it with its place and its remedy.
Exit status: 0 usable (warnings are printed), 1 errors, 2 the file cannot be read.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    options.add_log_level(parser)
    parser.add_argument("envoy_yaml", type=Path, metavar="PATH", help="the Envoy configuration")


def run(arguments: argparse.Namespace) -> int:
    """0 usable, 1 errors, 2 the file cannot be read."""
    from extproc import config
    from extproc.app import descriptors

    try:
        report = config.inspect(arguments.envoy_yaml)
    except OSError as error:
        print(f"{arguments.envoy_yaml}: {error.strerror or error}", file=sys.stderr)
        return 2
    print(report.render())
    if report.settings is not None:
        shortage = descriptors.shortage(report.settings, descriptors.attainable())
        if shortage is not None:
            print(f"\nwarning: on this machine {shortage}")
    return 1 if report.settings is None else 0
