"""The live check: one workload through real Envoy, our router on Redis and simulated engines, then through two peers.

    python -m bench.live [--minutes 5] [--policies smetric,least-loaded,bailian] [--peers] [--out out/live]

Each policy gets the same requests and fresh engines with empty caches; our policies are simulated, too. Runs are kept
under OUT as `python -m loadgen report` reads them. docs/live-check.md says what was seen.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import ending
from bench.contest import Result, Setting, play, simulated
from bench.peers import VENV, Peer
from loadgen.results.measures import Measures
from loadgen.stack.parts import StackFailed
from loadgen.stack.processes import ProcessFailed

POLICIES = "smetric,least-loaded,bailian"
# What `--tune` found, for both: docs/live-check.md.
BEST = {"balance-abs-threshold": 8, "cache-threshold": 0.6}
PEERS = (Peer("vllm-router", settings=BEST), Peer("smg", settings=BEST))
NOISE = 0.04  # of one run's TPS within SLO: what another seed may change
TUNED = {  # of each peer; one is varied at a time, from the best so far
    "balance-abs-threshold": (64, 8, 2),  # the first of each is the default of both
    "cache-threshold": (0.3, 0.6, 0.8),
    "balance-rel-threshold": (1.5, 1.1),
}

FIGURES: Sequence[tuple[str, Callable[[Measures], str]]] = (
    ("TPS within SLO", lambda one: f"{one.tps_slo:.0f}"),
    ("TPS", lambda one: f"{one.tps:.0f}"),
    ("within SLO", lambda one: f"{one.slo_share:.1%}"),
    ("max/mean load", lambda one: f"{one.imbalance:.2f}"),
    ("hit ratio", lambda one: f"{one.local:.1%}"),
    ("sticky", lambda one: f"{one.sticky_before:.1%}"),
    ("TTFT p50", lambda one: f"{one.ttft.p50:.2f} s"),
    ("p90", lambda one: f"{one.ttft.p90:.1f} s"),
    ("TPOT p90", lambda one: f"{one.tpot.p90 * 1000:.0f} ms"),
    ("failed", lambda one: f"{one.failed}/{one.requests}"),
)


def main() -> int:
    """Run what was asked for; 1 when a request of ours failed or live and simulated runs contradict each other."""
    args = _arguments()
    setting = Setting(
        engines=args.engines,
        model=args.model,
        length_scale=args.length_scale,
        local_tokens=args.local_tokens,
        time_scale=args.time_scale,
        profile=args.profile,
        rate=args.rate,
        seconds=args.minutes * 60 / args.time_scale,
        warmup=args.minutes * 60 / args.time_scale * args.warmup,
        seed=args.seed,
    )
    console = Console(soft_wrap=True, width=220)
    trace = setting.workload()
    console.print(
        f"{len(trace.requests)} requests of {len({one.session for one in trace.requests})} sessions, "
        f"{sum(one.input for one in trace.requests) / len(trace.requests):.0f} prompt and "
        f"{sum(one.output for one in trace.requests) / len(trace.requests):.0f} output tokens on average, in "
        f"{setting.seconds:.0f} s of {setting.engines} x {setting.model}, {1 / setting.time_scale:g} times as fast",
        highlight=False,
    )
    try:
        if args.tune:
            for peer in PEERS:
                _tune(peer, setting, args, console)
            return 0
        return _compare(setting, args, console)
    except (StackFailed, ProcessFailed) as error:
        print(f"bench.live: {error}", file=sys.stderr)
        return 1


def _compare(setting: Setting, args: argparse.Namespace, console: Console) -> int:
    trace = setting.workload()
    policies = [name for name in args.policies.split(",") if name]
    if args.peers:
        for peer in PEERS:
            peer.installed(args.venv)  # before half an hour of our own runs
    expected = [simulated(setting, trace, policy, args.out / f"simulated-{policy}") for policy in policies]
    console.print(_table("simulated", expected))
    live = []
    for policy in [*policies, *(PEERS if args.peers else ())]:
        label = policy if isinstance(policy, str) else policy.label.replace(" ", "-")
        live.append(play(setting, trace, policy, args.out / label, args.venv))
        console.print(_table("live", live[-1:]))
    console.print(_table("live", live))
    for one in live:
        for error, count in one.errors.items():
            console.print(f"{one.label}: {count} x {error}", highlight=False, markup=False)
    ours = live[: len(policies)]
    contradictions = list(_contradictions(ours, expected))
    console.print(
        f"order by TPS within SLO: live {' > '.join(_order(ours))}, simulated {' > '.join(_order(expected))}",
        highlight=False,
    )
    for better, worse in contradictions:
        console.print(f"{better} is better than {worse} live, and worse simulated, both by more than noise")
    return 1 if contradictions or any(one.errors for one in ours) else 0


def _tune(peer: Peer, setting: Setting, args: argparse.Namespace, console: Console) -> None:
    """Vary one setting after the other, each from the best so far; print what each came to."""
    trace = setting.workload()
    tried: list[Result] = []

    def score(settings: Mapping[str, float]) -> float:
        named = " ".join(f"{name} {value:g}" for name, value in settings.items())
        result = play(setting, trace, replace(peer, settings=settings), args.out / peer.program / named, args.venv)
        tried.append(replace(result, label=named))
        console.print(_table(peer.label, tried[-1:]))
        return result.measures.tps_slo

    best: dict[str, float] = {name: values[0] for name, values in TUNED.items()}
    most = score(best)
    for name, values in TUNED.items():
        for value in values[1:]:
            candidate = {**best, name: value}
            if (found := score(candidate)) > most:
                best, most = candidate, found
    console.print(_table(f"{peer.label}, best {best}", tried))


def _contradictions(live: Sequence[Result], expected: Sequence[Result]) -> Iterator[tuple[str, str]]:
    """Pairs that live and simulated runs order differently, in both by more than NOISE."""
    simulated = {one.label: one.measures.tps_slo for one in expected}
    for better, worse in permutations(live, 2):
        if (
            better.measures.tps_slo > (1 + NOISE) * worse.measures.tps_slo
            and simulated[worse.label] > (1 + NOISE) * simulated[better.label]
        ):
            yield better.label, worse.label


def _order(results: Sequence[Result]) -> list[str]:
    return [one.label for one in sorted(results, key=lambda one: -one.measures.tps_slo)]


def _table(title: str, results: Sequence[Result]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1))
    for head in ("", *(name for name, _ in FIGURES), "router CPU", "machine", "late", "requests per instance"):
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    for one in results:
        live = one.usage is not None
        table.add_row(
            one.label,
            *(figure(one.measures) for _, figure in FIGURES),
            f"{one.router_cpu_s * 1000:.1f} ms" if live else "-",
            f"{one.usage.machine:.0%}" if one.usage else "-",
            f"{one.late:.1%}" if live else "-",
            " ".join(str(count) for count in one.measures.per_instance.values()),
        )
    return table


def _arguments() -> argparse.Namespace:
    default = Setting()
    parser = argparse.ArgumentParser(
        prog="bench.live", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="of each live run, by this clock (%(default)s)")
    parser.add_argument("--policies", default=POLICIES, help="(%(default)s)")
    parser.add_argument("--peers", action="store_true", help="vllm-router and smg, too")
    parser.add_argument("--tune", action="store_true", help="instead: look for the peers' best settings")
    parser.add_argument("--venv", type=Path, default=VENV, help="where the peers are installed (%(default)s)")
    parser.add_argument("--engines", type=int, default=default.engines, help="(%(default)s)")
    parser.add_argument("--model", default=default.model, help="whose step times to take (%(default)s)")
    parser.add_argument(
        "--length-scale", type=float, default=default.length_scale, help="of the profile's lengths (%(default)s)"
    )
    parser.add_argument("--local-tokens", type=int, default=default.local_tokens, help="of a cache (%(default)s)")
    parser.add_argument("--time-scale", type=float, default=default.time_scale, help="(%(default)s)")
    parser.add_argument("--profile", default=default.profile, help="of the sessions (%(default)s)")
    parser.add_argument("--rate", type=float, default=default.rate, help="requests a second of the model (%(default)s)")
    parser.add_argument("--warmup", type=float, default=0.2, help="share of the run that is not counted (%(default)s)")
    parser.add_argument("--seed", type=int, default=default.seed, help="(%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("out/live"), help="(%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    ending.run(main, "interrupted; runs that had ended are in --out")
