"""`python -m loadgen report`: tables, figures and a page of what was run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from loadgen.command_error import CommandError
from loadgen.report import output
from loadgen.report.reading import Unreadable, read

DESCRIPTION = """\
Show what simulations, replays and sweeps say: DIR/report.html (one page, figures inside), DIR/tables.md,
DIR/tables.json, and DIR/figures/*.svg and *.png.

A PATH is a run's directory (of simulate or replay), a sweep's directory or its sweep.jsonl, or a directory of such.
Rows of runs give the load heatmaps and whole distributions; sweeps give curves over rates, provisionings and options,
with 95 % confidence intervals over seeds. Results of different settings (workload, machine, service level) are shown in
separate parts, never in one figure. The same input gives the same bytes.

examples:

  python -m loadgen report out/s                           a sweep
  python -m loadgen report out/smetric out/bailian         two runs side by side
  python -m loadgen report out/s out/runs --out out/page   a sweep, and runs for the heatmaps
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a run, a sweep, or a directory of such")
    parser.add_argument("--out", type=Path, default=Path("report"), metavar="DIR", help="where to write (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Read, draw, write, and say what the reader has to know."""
    errors = Console(stderr=True, soft_wrap=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("reading")
        try:
            material = read(args.paths, lambda path: progress.update(task, description=f"reading {path}"))
        except Unreadable as error:
            raise CommandError(str(error)) from error
        try:
            paths = output.write(
                material, args.out, lambda path: progress.update(task, description=f"drawing {path.stem}")
            )
        except OSError as error:
            raise CommandError(f"--out {args.out}: {error.strerror}") from error
    for note in material.notes:
        print(f"note: {note}", file=sys.stderr)  # noqa: T201 - a command line speaks to its user
    print(f"{paths[0]} with {sum(path.suffix == '.png' for path in paths)} figures")  # noqa: T201 - as above
    return 0
