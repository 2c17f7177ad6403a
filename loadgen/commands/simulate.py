"""`python -m loadgen simulate`: one cluster on a virtual clock."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from extproc.routing.policies import registry
from loadgen import simulation
from loadgen.command_error import CommandError
from loadgen.commands.options import add_service_level, policy_option, service_level
from loadgen.engine.timing import PROFILES as MODELS
from loadgen.results.measures import Measures, Quantiles, measure, shown
from loadgen.results.records import CSV, RunWriter, export_csv
from loadgen.simulation.scenario import Arrivals, Fetch, IndexView, Layout, Scenario
from loadgen.workloads.profiles import PROFILES
from loadgen.workloads.trace import Dispatch
from loadgen.workloads.traces import TraceError

DESCRIPTION = """\
Simulate a cluster: the product's own router, policies, loads and index before modelled vLLM instances, on a virtual
clock. WORKLOAD is a profile of `generate`, or a trace that `study` reads. A trace runs as it was recorded: its
arrivals, its bursts, its rate; with --rate its sessions are sampled instead, at random. Requests that no instance's
cache could hold are left out, and counted.

The cluster runs for --warmup seconds, which fill its caches and are not counted, then for --measure seconds. Equal
arguments give equal results. OUT gets run.json and requests.jsonl, a row a request, warm-up included; `report OUT...`
draws them. One run's throughput is uncertain by some per cent: `sweep` compares policies over seeds.

examples:

  python -m loadgen simulate paper-trace-1 --policy smetric --rate 5
  python -m loadgen simulate paper-trace-1 --policy bailian --option weight=0.8 --rate 5 --out out/bailian
  python -m loadgen simulate paper-trace-1 --rate 5 --global-ratio 0 --index routed
  python -m loadgen simulate trace.jsonl --instances 16
  python -m loadgen simulate trace.jsonl --rate 3 --instances 16
  python -m loadgen simulate paper-trace-1 --layout disaggregated --rate 8
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options: the fields of a Scenario."""
    default = Scenario()
    parser.add_argument("workload", metavar="WORKLOAD", help=f"a trace, or a profile: {', '.join(PROFILES)}")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the run is written (nowhere)")
    parser.add_argument("--export", choices=["csv"], help=f"write OUT/{CSV} too")
    routing = parser.add_argument_group("routing")
    routing.add_argument("--policy", default=default.policy, choices=registry.names(), help="(%(default)s)")
    routing.add_argument("--option", action="append", default=[], metavar="NAME=X", help="of the policy; repeatable")
    routing.add_argument(
        "--index",
        type=IndexView,
        choices=list(IndexView),
        default=default.index,
        help="what the router's index sees of the caches: their events, their events without evictions, or only what "
        "the router sent where (%(default)s)",
    )
    load = parser.add_argument_group("load")
    load.add_argument(
        "--rate", type=float, metavar="X", help=f"requests a second ({default.rate:g}; of a trace: as recorded)"
    )
    load.add_argument("--seed", type=int, default=default.seed, help="(%(default)s)")
    load.add_argument(
        "--dispatch",
        type=Dispatch,
        choices=list(Dispatch),
        help="follow-ups: a gap after the parent's end, or at their time in the trace "
        f"({default.dispatch}; as recorded: {Dispatch.TRACE})",
    )
    load.add_argument(
        "--warmup",
        type=float,
        metavar="S",
        help=f"({default.warmup_s:g}; as recorded: a third of the trace at most)",
    )
    load.add_argument("--measure", type=float, metavar="S", help=f"({default.measure_s:g}; as recorded: the rest)")
    cluster = parser.add_argument_group("cluster")
    cluster.add_argument("--instances", type=int, default=default.instances, metavar="N", help="(%(default)s)")
    cluster.add_argument("--model", default=default.model, choices=list(MODELS), help="on which GPU (%(default)s)")
    cluster.add_argument(
        "--layout",
        type=Layout,
        choices=list(Layout),
        default=default.layout,
        help="disaggregated: the instances only prefill, an ideal decoder takes over (%(default)s)",
    )
    cluster.add_argument(
        "--batch-tokens",
        type=int,
        default=default.batch_tokens,
        metavar="N",
        help="of one step, as vLLM's --max-num-batched-tokens (%(default)s)",
    )
    cluster.add_argument(
        "--long-prefill-threshold",
        type=int,
        default=default.long_prefill_threshold,
        metavar="N",
        help="of these for one prompt at most, as --long-prefill-token-threshold; 0: no limit (%(default)s)",
    )
    cluster.add_argument("--local-tokens", type=int, metavar="N", help="an instance's KV cache (the model's)")
    cluster.add_argument("--block-size", type=int, metavar="N", help="tokens; a multiple of the workload's (the same)")
    cluster.add_argument(
        "--global-ratio",
        type=float,
        default=default.global_ratio,
        metavar="X",
        help="global tier / local caches, in tokens; 0: none (%(default)s)",
    )
    cluster.add_argument("--fetch", type=Fetch, choices=list(Fetch), default=default.fetch, help="(%(default)s)")
    cluster.add_argument("--fetch-gbps", type=float, default=default.fetch_gbps, metavar="X", help="GB/s (%(default)s)")
    add_service_level(parser, "service level")


def run(args: argparse.Namespace) -> int:
    """Simulate, keep the rows, say what they come to."""
    if args.export and not args.out:
        raise CommandError("--export needs --out")
    asked = scenario(args)
    started = time.monotonic()
    try:
        prepared = simulation.prepared(asked)
        with _progress(asked) as tell:
            rows = simulation.simulate(asked, prepared.trace, progress=tell)
    except (TraceError, ValueError, OSError) as error:
        raise CommandError(str(error)) from error
    info = simulation.info(asked, rows, prepared.left_out)
    info.wall_s = time.monotonic() - started
    measured = measure(rows, info)
    if not measured.requests:
        raise CommandError(simulation.idle(asked))
    try:
        if args.out:
            with RunWriter(args.out, info) as writer:
                for row in rows:
                    writer.add(row)
        if args.export:
            export_csv(rows, args.out / CSV)
    except OSError as error:
        raise CommandError(f"{error.filename or args.out}: {error.strerror}") from error
    console = Console(soft_wrap=True)
    for line in _summary(asked, measured, prepared.left_out, info.wall_s):
        console.print(line, highlight=False, markup=False)
    return 0


def scenario(args: argparse.Namespace) -> Scenario:
    """The scenario that the options describe. Raises CommandError where it cannot be simulated."""
    default = Scenario()
    drawn = {"rate": args.rate, "dispatch": args.dispatch, "warmup_s": args.warmup, "measure_s": args.measure}
    asked = Scenario(
        policy=args.policy,
        options=dict(policy_option(args.policy, text, f"--option {text}") for text in args.option),
        workload=args.workload,
        seed=args.seed,
        instances=args.instances,
        model=args.model,
        block_size=args.block_size,
        batch_tokens=args.batch_tokens,
        long_prefill_threshold=args.long_prefill_threshold,
        local_tokens=args.local_tokens,
        global_ratio=args.global_ratio,
        fetch=args.fetch,
        fetch_gbps=args.fetch_gbps,
        layout=args.layout,
        index=args.index,
        slo=service_level(args),
        **{name: getattr(default, name) if value is None else value for name, value in drawn.items()},
    )
    try:
        simulation.check(asked)
        if args.workload in PROFILES or args.rate is not None:
            return asked
        return simulation.as_recorded(asked, warmup_s=args.warmup, measure_s=args.measure, dispatch=args.dispatch)
    except simulation.UnfitValue as error:
        raise CommandError(f"{_option(error.field, error.value)}: {error.expected}") from error
    except (simulation.ImpossibleScenario, TraceError) as error:
        raise CommandError(str(error)) from error


def _option(field: str, value: object) -> str:
    """A scenario's field and its value as they are given here."""
    if field.startswith("options."):
        return f"--option {field.removeprefix('options.')}={value}"
    if field == "workload":
        return str(value)
    return f"--{field.removesuffix('_s').replace('.', '-').replace('_', '-')} {value}"


def _summary(asked: Scenario, found: Measures, left_out: simulation.LeftOut, wall_s: float) -> Iterator[str]:
    reasons = ", ".join(f"{reason} {count}" for reason, count in found.reasons.items())
    ttft, tpot = found.ttft, found.tpot
    how = "as recorded" if asked.arrivals is Arrivals.RECORDED else "offered"
    yield f"policy          {simulation.label(asked)}, seed {asked.seed}, {asked.rate:.4g} requests/s {how}"
    if left_out.requests:
        yield (
            f"left out        {left_out.requests:.1%} of the requests, {left_out.tokens:.1%} of the tokens: "
            "no instance's cache holds them"
        )
    if off := simulation.off(asked.rate, found.requests_per_s):
        yield f"arriving        {found.requests_per_s:.3g} requests/s in the window: {off:+.0%} against that"
    yield f"requests        {found.requests} in {asked.measure_s:g} s, {found.failed} unfinished; {reasons}"
    share, local, fetched, first = (
        shown(100 * value, "{:.1f} %") for value in (found.slo_share, found.local, found.fetched, found.sticky_first)
    )
    yield f"TPS within SLO  {found.tps_slo:.0f} output tokens/s ({found.tps_slo_all:.0f} with prompts); "
    yield f"                {share} of the requests met it"
    yield f"reuse           {local} of the prompt tokens local, {fetched} fetched"
    yield f"load            hottest / mean instance {shown(found.imbalance, '{:.2f}')} in tokens a minute"
    yield f"follow-ups      {first} on their session's first instance"
    yield f"TTFT            {_points(ttft, 1, '{:.2f}')} s"
    yield f"TPOT            {_points(tpot, 1000, '{:.1f}')} ms"
    yield f"simulated in    {wall_s:.1f} s"


def _points(values: Quantiles, factor: float, form: str) -> str:
    points = {"p50": values.p50, "p90": values.p90, "p99": values.p99}
    return ", ".join(f"{name} {shown(factor * value, form)}" for name, value in points.items())


@contextmanager
def _progress(asked: Scenario) -> Iterator[Callable[[float], None]]:
    """A bar on stderr, on a terminal alone; to be told the simulated time."""
    bar = Progress(
        TextColumn("simulating"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.disable = not bar.console.is_terminal
    task = bar.add_task("", total=asked.warmup_s + asked.measure_s + simulation.DRAIN_S)
    with bar:
        yield lambda now: bar.update(task, completed=now)
