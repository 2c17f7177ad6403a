"""`python -m loadgen paper`: the reproduction of the SMetric paper, from simulations to docs/reproduction.md."""

from __future__ import annotations

import argparse
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from loadgen.command_error import CommandError
from loadgen.paper import document, figures, grid, made, workload
from loadgen.paper.evidence import Evidence
from loadgen.paper.settings import FULL, QUICK, Plan
from loadgen.simulation.sweeps import sweep
from loadgen.simulation.sweeps.progress import progress

DESCRIPTION = """\
Reproduce the SMetric paper in simulation and write it up: for every figure of the paper its value, ours with a 95 %
confidence interval, and how they compare. Baselines are tuned first, as in the paper.

In full it takes about an hour on two cores. Results are kept in OUT as they come: the same command goes on where an
interrupted one stopped. --quick takes five minutes, for a look: few seeds, short windows, a coarse grid.

examples:

  python -m loadgen paper                   writes docs/reproduction.md and docs/figures/
  python -m loadgen paper --quick           writes out/paper-quick/reproduction.md
  python -m loadgen paper --write-only      the document again, from what is stored, complete or not
"""

ROWS = "rows"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--quick", action="store_true", help="a coarse look in five minutes")
    parser.add_argument("--out", type=Path, metavar="DIR", help="results (out/paper, or out/paper-quick)")
    parser.add_argument(
        "--document", type=Path, metavar="FILE", help="(docs/reproduction.md; with --quick DIR/reproduction.md)"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="processes (one a core)")
    parser.add_argument("--write-only", action="store_true", help="simulate nothing")


def run(args: argparse.Namespace) -> int:
    """Simulate what is missing, then write. 1 when a simulation failed."""
    if args.jobs is not None and args.jobs < 1:
        raise CommandError(f"--jobs {args.jobs}: a positive number is needed")
    plan = QUICK if args.quick else FULL
    out = args.out or Path("out/paper-quick" if args.quick else "out/paper")
    path = args.document or (out / "reproduction.md" if args.quick else Path("docs/reproduction.md"))
    failed = 0
    try:
        if not args.write_only:
            out.mkdir(parents=True, exist_ok=True)
            failed = _simulate(plan, out, args.jobs or os.cpu_count() or 1)
        _write(plan, out, path)
    except (sweep.SweepFailed, workload.StudyFailed) as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"{error.filename or out}: {error.strerror}") from error
    if failed:
        _say(f"{failed} simulations failed: the errors are in {out / sweep.FILE}; the same command tries them again")
    return 1 if failed else 0


def _simulate(plan: Plan, out: Path, jobs: int) -> int:
    """Everything that has no result yet; how many failed."""
    start, clock = datetime.now(UTC), time.monotonic()
    code = made.commit(Path(__file__).parent)
    _say(f"studying the workload, then simulating: {'five minutes' if plan is QUICK else 'about an hour'} on two cores")
    _say(f"results are kept in {out}: the same command goes on where this one is stopped")
    with progress(len(workload.scenarios(plan)), "studying") as studied:
        workload.studies(plan, out, jobs, studied)
    tuning = grid.tuning(plan)
    with progress(len(tuning), "tuning") as advance:
        tuned = sweep.run(tuning, out / sweep.FILE, jobs=jobs, progress=advance)
    chosen = grid.tuned(plan, {result.key: result for result in tuned})
    judged = grid.judged(plan, chosen)
    keep = {key: out / ROWS / key for key in map(sweep.key, grid.shown(plan, chosen))}
    with progress(len(judged), "judging") as advance:
        results = sweep.run(judged, out / sweep.FILE, jobs=jobs, keep=keep, progress=advance)
    made.write(
        made.Made(
            command=made.command(sys.argv[1:], Path.cwd()),
            started=f"{start:%Y-%m-%d %H:%M} UTC",
            seconds=time.monotonic() - clock,
            jobs=jobs,
            commit=code,
            machine=made.machine(),
        ),
        out,
    )
    return sum(result.error is not None for result in [*tuned, *results])


def _write(plan: Plan, out: Path, path: Path) -> None:
    evidence = Evidence.of(plan, sweep.read(out / sweep.FILE))
    if not evidence.results:
        raise CommandError(f"there are no results in {out}: leave --write-only out to make some")
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = list(figures.draw(evidence, out / ROWS, path))
    text = document.markdown(evidence, workload.read(plan, out), drawn, made.read(out))
    path.write_text(text, encoding="utf-8")
    _say(f"wrote {path}, with {len(drawn)} figures")


def _say(text: str) -> None:
    Console(soft_wrap=True).print(text, highlight=False)
