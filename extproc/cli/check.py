"""`extproc check`: what an Envoy YAML means to us, and what is wrong with it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from extproc.base.errors import ConfigError
from extproc.cli import options

if TYPE_CHECKING:
    from extproc.config import Report

DESCRIPTION = """\
Explain what an Envoy YAML means to the processor, and every mistake in it with its place and its remedy.
With --live it also tries every address in the YAML: engines, KV events, replays, Redis, names, and the model files.
Exit status: 0 usable (warnings are printed), 1 errors or addresses that fail, 2 a file cannot be read.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    options.add_log_level(parser)
    parser.add_argument("envoy_yaml", type=Path, metavar="PATH", help="the Envoy configuration")
    parser.add_argument("--live", action="store_true", help="also try every address in it, and say what answers")
    options.add_index(parser, "with --live: the index that `serve` would use")


def run(arguments: argparse.Namespace) -> int:
    """0 usable, 1 errors or addresses that fail, 2 a file cannot be read."""
    from extproc import config
    from extproc.app import open_files

    try:
        index = options.index_url(arguments)
        report = config.inspect(arguments.envoy_yaml)
    except OSError as error:
        print(f"{error.filename or arguments.envoy_yaml}: {error.strerror or error}", file=sys.stderr)
        return 2
    print(report.render())
    if report.settings is None:
        return 1
    shortage = open_files.shortage(report.settings, open_files.attainable())
    if shortage is not None:
        print(f"\nwarning: on this machine {shortage}")
    return _live(report, index) if arguments.live else 0


def _live(report: Report, index: str) -> int:
    import asyncio

    from extproc.app import open_files
    from extproc.cli.check_live import findings
    from extproc.cli.check_live.run import run

    assert report.settings is not None
    open_files.raise_limit()
    print(flush=True)
    try:
        found = asyncio.run(run(list(report.settings.pools.values()), report.servers, index))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    print(findings.render(found))
    return 1 if any(finding.outcome is findings.Outcome.FAILED for finding in found) else 0
