"""One part of the search: simulate what is missing of it, print its tables as Markdown.

python -m bench.policy_search finals --out out/search --jobs 1
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench import ending
from bench.policy_search.cases import PARTS, SMETRIC, Case, Part
from bench.policy_search.tables import MARGIN_HEAD, against_first, margin
from loadgen.simulation.sweeps import sweep
from loadgen.simulation.sweeps.peaks import Curve, curves
from loadgen.simulation.sweeps.progress import progress


def simulated(case: Case, part: Part, seeds: int | None, path: Path, jobs: int | None) -> list[Curve]:
    """A case's curves, SMetric's first; failures are told."""
    scenarios = case.scenarios(part.who, part.seeds[:seeds])
    with progress(len(scenarios), case.name) as advance:
        results = sweep.run(scenarios, path, jobs=jobs, progress=advance, work=case.work)
    for result in results:
        if result.error:
            print(f"failed: {sweep.label(result.scenario)}, seed {result.scenario.seed}: {result.error}")
    found = curves(results)
    first = found.pop(SMETRIC[0])
    return [first, *found.values()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.policy_search", description=__doc__)
    parser.add_argument("part", choices=sorted(PARTS))
    parser.add_argument("--case", help="only cases whose name contains this")
    parser.add_argument(
        "--out", type=Path, default=Path("out/policy-search"), help="where results are kept (%(default)s)"
    )
    parser.add_argument("--seeds", type=int, help="only the first so many")
    parser.add_argument("--jobs", type=int, help="processes (one a core)")
    args = parser.parse_args()
    part = PARTS[args.part]
    print(f"### {part.title}\n")
    if part.baselines:
        print(MARGIN_HEAD)
    for case in part.cases:
        if args.case and args.case not in case.name:
            continue
        found = simulated(case, part, args.seeds, args.out / f"{case.work.__name__}.jsonl", args.jobs)
        if part.baselines:
            print(margin(case.name, found), flush=True)
        else:
            print("\n".join(against_first(case.name, found)), flush=True)


if __name__ == "__main__":
    ending.run(main, "interrupted; the same command goes on from here")
