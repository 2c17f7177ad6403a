"""`python -m loadgen study`: what traces say of their workloads."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadgen.command_error import CommandError
from loadgen.study.findings import Study
from loadgen.study.measures import study
from loadgen.study.table import markdown
from loadgen.workloads import traces

DESCRIPTION = """\
Study a recorded or generated workload: how much of its prompts could be reused with an infinite store, from whom and
how soon, what triggers requests, how tokens spread over sessions, and how evenly instances could be loaded. These are
figures 5 to 9 of the SMetric paper. Several traces are shown side by side.

The format is found by the first line: our superset, Mooncake, aiperf's multi-turn variant, Bailian, Claude Code
sessions (a directory of them, too), Azure's CSV, TraceLab's rounds; plain or gzip. What a format does not say is named,
not guessed. docs/workloads.md explains the formats and the figures.

examples:

  python -m loadgen study conversation_trace.jsonl
  python -m loadgen study sessions.jsonl.gz generated.jsonl --figures out/study
  python -m loadgen study generated.jsonl --json | jq '.[0].reuse'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="a file, or a directory of sessions")
    parser.add_argument("--instances", type=int, default=32, metavar="N", help="for rate and balance (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON in place of Markdown")
    parser.add_argument("--figures", type=Path, metavar="DIR", help="draw the figures, PNG and SVG")


def run(args: argparse.Namespace) -> int:
    """Study, print, draw."""
    if args.instances < 1:
        raise CommandError(f"--instances {args.instances}: at least one is needed")
    studies = [_study(path, args.instances) for path in args.traces]
    if args.json:
        text = msgspec.json.format(msgspec.json.encode(studies), indent=1).decode() + "\n"
    else:
        text = markdown(studies)
    sys.stdout.write(text)
    if args.figures is not None:
        _draw(studies, args.figures)
    return 0


def _study(path: Path, instances: int) -> Study:
    with _progress(path.name) as begin:
        begin(None)
        trace = traces.load(path)
        return study(trace, instances, begin(len(trace.requests)))


def _draw(studies: Sequence[Study], directory: Path) -> None:
    # Late, for matplotlib takes a second that a table need not wait for.
    figures = import_module("loadgen.report.figures")
    drawn = import_module("loadgen.study.figures").draw(studies)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for figure in drawn:
            figures.save(figure, directory / figure.name)
    except OSError as error:
        raise CommandError(f"--figures {directory}: {error.strerror}") from error
    print(f"{directory}: {', '.join(figure.name for figure in drawn)}", file=sys.stderr)  # noqa: T201 - speaks to its user


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int | None], Callable[[int], object]]]:
    """A bar on stderr, on a terminal alone. It begins with a length, None while that is not known."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"reading {name}", total=None)

        def begin(length: int | None) -> Callable[[int], object]:
            if length is not None:
                bar.reset(task, total=length, description=f"studying {name}")
            return lambda more: bar.advance(task, more)

        yield begin
