"""`python -m loadgen sweep`: many simulations, and each policy's best."""

from __future__ import annotations

import argparse
import itertools
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

import msgspec
from rich.console import Console

from extproc.routing.policies import registry
from loadgen import simulation
from loadgen.command_error import CommandError
from loadgen.commands.options import policy_option
from loadgen.results.records import Slo
from loadgen.simulation.scenario import Arrivals, Scenario
from loadgen.simulation.sweeps import sweep
from loadgen.simulation.sweeps.progress import progress
from loadgen.simulation.sweeps.table import WIDE, notes, tables
from loadgen.workloads.profiles import PROFILES
from loadgen.workloads.traces import TraceError

DESCRIPTION = """\
Simulate every combination of rates, policies, provisionings, seeds and whatever else is --set, over all cores.

Each simulation is a line in OUT/sweep.jsonl as soon as it is done: the same command goes on where an interrupted one
stopped, and a wider one adds what is missing. A simulation that fails is a line with its error. In the end, for each
policy and setting, the maximum over the rates of the tokens a second within the service level (TPS within SLO), with
95 % confidence intervals over the seeds, and the difference to the first policy over the same seeds.

examples:

  python -m loadgen sweep --rate 6,8,10 --policy smetric --policy bailian:weight=0.8 --global-ratio 0,4.6 --out out/s
  python -m loadgen sweep --rate 8 --policy smetric --set fetch=blocking,async --set fetch_gbps=3,6.5 --out out/fetch
  python -m loadgen sweep --rate 2 --set instances=8 --set model=235b-4xh20 --set slo.tpot_s=0.05 --out out/large
"""

_TYPES = typing.get_type_hints(Scenario)
_SLO = {f"slo.{field.name}": field.name for field in fields(Slo)}
_SETTABLE = [
    f.name for f in fields(Scenario) if f.name not in {"policy", "options", "rate", "seed", "slo", "arrivals"}
] + [*_SLO]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    default = Scenario()
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where results are kept")
    parser.add_argument(
        "--policy",
        action="append",
        metavar="NAME[:OPTION=X...]",
        help=f"repeatable ({default.policy}); of {', '.join(registry.names())}",
    )
    parser.add_argument(
        "--rate", metavar="X[,X...]", help=f"requests a second ({default.rate:g}; of a trace: as recorded)"
    )
    parser.add_argument(
        "--global-ratio",
        default=f"{default.global_ratio:g}",
        metavar="X[,X...]",
        help="global tier / local cache, tokens; 0 is none (%(default)s)",
    )
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 0 to N - 1 (%(default)s)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="sets",
        metavar="FIELD=X[,X...]",
        help=f"repeatable; of {', '.join(_SETTABLE)}",
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="processes (one a core)")


def run(args: argparse.Namespace) -> int:
    """Simulate what is missing, then sum up. 1 when a simulation failed."""
    if args.seeds < 1 or (args.jobs is not None and args.jobs < 1):
        raise CommandError("--seeds and --jobs: a positive number is needed")
    asked = scenarios(args.policy or [Scenario().policy], args.rate, args.global_ratio, args.seeds, args.sets)
    if any(scenario.arrivals is Arrivals.RECORDED for scenario in asked) and args.seeds > 1:
        _say("as recorded there is one sample: no seeds, no intervals; --rate draws sessions from the trace")
    try:
        with progress(len(asked)) as advance:
            results = sweep.run(asked, args.out / sweep.FILE, jobs=args.jobs, progress=advance)
    except sweep.SweepFailed as error:
        raise CommandError(str(error)) from error
    console = Console(soft_wrap=True)
    if not console.is_terminal:
        console = Console(soft_wrap=True, width=WIDE)
    for table in tables(results):
        console.print(table)
    for note in notes(results):
        console.print(note, highlight=False, markup=False)
    console.print(f"{len(results)} simulations in {args.out / sweep.FILE}", highlight=False)
    failed = [result for result in results if result.error]
    for result in failed[:3]:
        console.print(
            f"failed: {sweep.label(result.scenario)}, seed {result.scenario.seed}: {result.error}", markup=False
        )
    return 1 if failed else 0


def scenarios(
    policies: Sequence[str], rates: str | None, ratios: str, seeds: int, sets: Sequence[str]
) -> list[Scenario]:
    """All combinations, those of one trace together. Raises CommandError for what cannot be read.

    Without rates, a recording runs as it was recorded, once: it is the same whatever the seed.
    """
    chosen = [_policy(text) for text in policies]
    grid = {} if rates is None else {"rate": _values("rate", rates, "--rate")}
    grid["global_ratio"] = _values("global_ratio", ratios, "--global-ratio")
    for text in sets:
        name, given, values = text.partition("=")
        if not given or name not in _SETTABLE:
            raise CommandError(f"--set {text}: FIELD=VALUE[,VALUE...] with a field of {', '.join(_SETTABLE)}")
        grid[name] = _values(name, values, f"--set {name}")
    found = []
    for combination, seed in itertools.product(itertools.product(*grid.values()), range(seeds)):
        base = _with(dict(zip(grid, combination, strict=True)), seed)
        if seed == 0 or base.arrivals is Arrivals.DRAWN:
            found += [replace(base, policy=policy, options=options) for policy, options in chosen]
    _check(found)
    return found


def _check(asked: Iterable[Scenario]) -> None:
    """Raises CommandError for what cannot be simulated, in this command's words; seeds make no difference."""
    try:
        for scenario in asked:
            if scenario.seed == 0:
                simulation.check(scenario)
    except simulation.UnfitValue as error:
        if error.field.startswith("options."):
            option = f"--policy {scenario.policy}:{error.field.removeprefix('options.')}={error.value}"
        elif error.field in {"rate", "global_ratio"}:
            option = f"--{error.field.replace('_', '-')} {error.value}"
        else:
            option = f"--set {error.field}={error.value}"
        raise CommandError(f"{option}: {error.expected}") from error
    except simulation.ImpossibleScenario as error:
        raise CommandError(str(error)) from error


def _policy(text: str) -> tuple[str, Mapping[str, float]]:
    name, *pairs = text.split(":")
    if name not in registry.names():
        raise CommandError(f"--policy {text}: there is no such policy, but {', '.join(registry.names())}")
    return name, dict(policy_option(name, pair, f"--policy {text}") for pair in pairs)


def _values(name: str, text: str, option: str) -> list[object]:
    kind = float if name in _SLO else _TYPES[name]
    found = []
    for value in text.split(","):
        try:
            found.append(msgspec.convert(None if value == "none" else value, kind, strict=False))
        except msgspec.ValidationError as error:
            raise CommandError(f"{option} {value}: {error}") from None
    return found


def _with(chosen: Mapping[str, object], seed: int) -> Scenario:
    slo = {_SLO[name]: value for name, value in chosen.items() if name in _SLO}
    rest = {name: value for name, value in chosen.items() if name not in _SLO}
    base = Scenario(seed=seed)
    base = replace(base, **rest, slo=replace(base.slo, **slo))  # type: ignore[arg-type]  # converted to the field's type
    if "rate" in chosen or base.workload in PROFILES or not Path(base.workload).exists():
        return base
    given = {name: rest[name] for name in ("warmup_s", "measure_s", "dispatch") if name in rest}
    try:
        return simulation.as_recorded(base, **given)  # type: ignore[arg-type]  # as above
    except (simulation.ImpossibleScenario, TraceError) as error:
        raise CommandError(f"--set workload={base.workload}: {error}") from error


def _say(text: str) -> None:
    Console(stderr=True, soft_wrap=True).print(f"loadgen: {text}", highlight=False, markup=False)
