"""`python -m loadgen demo`, which is `make run`: agent sessions through a real Envoy, one policy after the other."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence

from rich.console import Console

from extproc.policies import registry
from loadgen import client, workload
from loadgen.commands import CommandError
from loadgen.live import View, comparison, view
from loadgen.processes import ProcessFailed
from loadgen.stack import Stack, StackFailed
from loadgen.summary import Summary, summarise
from loadgen.watch import Watch
from loadgen.workload import Session

DESCRIPTION = """\
Run the same agent sessions through Envoy and ext_proc under one policy after the other, each time with fresh engines,
show what happens, and compare. Takes about a minute; Ctrl-C stops it and cleans up.

Real are Envoy, ext_proc, its index, HTTP, the KV events, tokenizer and prefix caches. Simulated are the engines' step
times and what they answer, and the agents.

examples:

  make run                                            SMetric, then round robin
  make run ARGS="--policy smetric,least-loaded --sessions 36"
  make run ARGS=--serve                               only start everything, for curl
"""

LIMIT = 70.0  # seconds that one policy may take: both together stay under three minutes
REFRESH = 0.25
SERVE_PORT = 10_000
NOTE = """\
Real: Envoy, the ext_proc server with its index, HTTP, KV events over ZMQ, tokenizer, prefix caches.
Simulated: how long the engines compute (profile "demo", no GPU) and what they answer; the agents are synthetic."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--sessions", type=_positive, default=24, metavar="N", help="agents at a time (%(default)s)")
    parser.add_argument("--turns", type=_positive, default=6, metavar="N", help="requests of each (%(default)s)")
    parser.add_argument("--engines", type=_positive, default=4, metavar="N", help="simulated engines (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the workload (%(default)s)")
    parser.add_argument(
        "--policy",
        default="smetric,round-robin",
        metavar="NAME[,NAME...]",
        help=f"policies to run, in this order (%(default)s), of {', '.join(registry.names())}",
    )
    parser.add_argument("--serve", action="store_true", help="start everything with the first policy and keep it up")
    parser.add_argument("--port", type=_port, metavar="N", help="where Envoy listens (10000 with --serve, else free)")


def run(args: argparse.Namespace) -> int:
    """Serve, or run every policy and compare."""
    console = Console(soft_wrap=True)
    policies = [name.strip() for name in args.policy.split(",") if name.strip()]
    known = registry.names()
    for name in policies or [args.policy]:
        if name not in known:
            raise CommandError(f"--policy {name}: there is no such policy, but {', '.join(known)}")
    try:
        if args.serve:
            return _serve(console, args, policies[0])
        return _compare(console, args, policies)
    except (StackFailed, ProcessFailed) as error:
        raise CommandError(str(error)) from error


def _compare(console: Console, args: argparse.Namespace, policies: Sequence[str]) -> int:
    sessions = workload.sessions(
        args.sessions, args.turns, system_bytes=40_000, seed=args.seed, turn_bytes=8_000, think_s=1.0
    )
    console.print(NOTE, style="dim", highlight=False)
    console.print(
        f"{args.sessions} sessions of {args.turns} requests, a shared system prompt of 40 KB, {args.engines} engines"
    )
    results: list[tuple[str, Summary]] = []
    for policy in policies:
        with Stack(args.engines, policy={"policy": policy}, port=args.port) as stack, view(console) as shown:
            watch = Watch(stack, policy, args.sessions * args.turns)
            finished = asyncio.run(_run(watch, stack.url, sessions, shown))
            shown.show(watch.snapshot())
        if not finished:
            console.print(f"{policy}: cut off after {LIMIT:.0f} s; the figures are of what was finished until then")
        for error in sorted({record.error for record in watch.records if record.error}):
            console.print(f"{policy}: a request failed: {error}", highlight=False)
        results.append((policy, summarise(watch.records, [engine.address for engine in stack.engines])))
    console.print(comparison(results))
    console.print(NOTE, style="dim", highlight=False)
    return 1 if any(summary.failed for _, summary in results) else 0


async def _run(watch: Watch, url: str, sessions: Sequence[Session], shown: View) -> bool:
    """Run the sessions and show them meanwhile. False when their time was up before they were through."""
    showing = asyncio.create_task(_show(watch, shown))
    try:
        async with asyncio.timeout(LIMIT):
            await client.run(url, sessions, on_record=watch.records.append)
    except TimeoutError:
        return False
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)
    return True


async def _show(watch: Watch, shown: View) -> None:
    while True:
        shown.show(await asyncio.to_thread(watch.snapshot))
        await asyncio.sleep(REFRESH)


def _serve(console: Console, args: argparse.Namespace, policy: str) -> int:
    with Stack(args.engines, policy={"policy": policy}, port=args.port or SERVE_PORT) as stack:
        console.print(NOTE, style="dim", highlight=False)
        console.print(
            f"""\
{args.engines} engines are up behind Envoy, policy {policy}. Ctrl-C stops everything.

  curl -si {stack.url}{client.CHAT} -H 'content-type: application/json' \\
       -d '{{"messages": [{{"role": "user", "content": "hello"}}], "max_tokens": 12}}'

  x-engine in the answer says who served it. Every decision is in Envoy's access log; look too at ext_proc and Envoy:

  tail -f {stack.access_log_path}
  curl -s {stack.metrics_url}/debug/state
  curl -s {stack.metrics_url}/metrics
  curl -s {stack.admin_url}/clusters""",
            highlight=False,
        )
        while True:
            time.sleep(REFRESH)
            for child in stack.children:
                child.require()


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _port(text: str) -> int:
    port = _positive(text)
    if port > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: they end at 65535")
    return port
