"""What `make run` runs: agent sessions through a real Envoy, one policy after the other; or everything kept up."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from rich.console import Console

from loadgen.demo.comparison import comparison
from loadgen.demo.kept import Kept
from loadgen.demo.watch import Watch
from loadgen.demo.words import starting
from loadgen.engine.options import MODEL_DIR
from loadgen.replay.chat_request import CHAT
from loadgen.replay.live import view
from loadgen.replay.progress import Progress, Snapshot
from loadgen.replay.replay import UNFINISHED, Counts, Options
from loadgen.replay.run import Gateway, play
from loadgen.replay.words import Words
from loadgen.results.records import Row, RunInfo
from loadgen.stack.stack import Stack, StackFailed
from loadgen.workloads.profiles import PROFILES, fixed
from loadgen.workloads.synthetic import generate_whole
from loadgen.workloads.trace import Trace

LIMIT_S = 70.0  # that one policy may take: both together stay under three minutes
REFRESH = 0.25
LOG_S = 2.0  # what Envoy may take to write its last lines
PROFILE = PROFILES["demo"]
# Long enough for several prompt blocks: what is shorter than one is never found in a cache.
SYSTEM = "You are a careful agent. Read before you write, and test what you wrote. " * 28


def compare(args: argparse.Namespace, policies: Sequence[str]) -> int:
    """Run the same sessions under each policy. Raises StackFailed and ProcessFailed."""
    console = Console(soft_wrap=True)
    profile = replace(PROFILE, turns=fixed(args.turns))
    trace = generate_whole(profile, sessions=args.sessions, rate=1.0, seed=args.seed)
    runs: list[tuple[RunInfo, list[Row]]] = []
    for policy in policies:
        if runs:
            console.print(starting(args.engines), highlight=False)
        kept = None if args.keep is None else Kept(args.keep / policy)
        options = () if kept is None else ("--enable-log-requests",)
        directory = None if kept is None else kept.directory
        with Stack(
            args.engines, policy={"policy": policy}, port=args.port, engine_options=options, directory=directory
        ) as stack:
            runs.append(_under(policy, stack, trace, args, console, kept))
        if kept is not None:
            console.print(f"{policy}: kept in {kept.directory}", highlight=False)
    console.print(comparison(runs))
    return 1 if any(row.error for _, rows in runs for row in rows) else 0


def _under(
    policy: str, stack: Stack, trace: Trace, args: argparse.Namespace, console: Console, kept: Kept | None
) -> tuple[RunInfo, list[Row]]:
    """Run the sessions, all at a time, and show them meanwhile."""
    instances = [engine.address for engine in stack.engines]
    rows: list[Row] = []
    progress = Progress(policy, len(trace.requests), Counts(), instances)

    def on_row(row: Row) -> None:
        if row.error != UNFINISHED:  # cut off, which is said below
            rows.append(row)

    async def run() -> None:
        async with asyncio.timeout(LIMIT_S):
            gateway = Gateway(url=stack.url, headers={}, timeout_s=300.0)
            script = Words(trace, MODEL_DIR)
            options = Options(closed=args.sessions, keep=None if kept is None else kept.body)
            await play(gateway, trace, script, options, on_row, progress, show)

    watch = Watch(stack)
    with view(console) as shown:

        def show(snapshot: Snapshot) -> None:
            shown.show(watch.complete(snapshot))

        try:
            asyncio.run(run())
        except TimeoutError:
            console.print(f"{policy}: cut off after {LIMIT_S:.0f} s; the figures are of what was finished until then")
        stack.access_log(len(rows), LOG_S)
        show(progress.snapshot())
    for error in sorted({row.error for row in rows if row.error}):
        console.print(f"{policy}: a request failed: {error}", highlight=False)
    end = max((row.end_s or row.sent_s for row in rows), default=0.0)
    info = RunInfo(
        kind="replay",
        label=policy,
        policy=policy,
        workload=trace.name,
        rate=1.0,
        seed=args.seed,
        instances=instances,
        window=(0.0, end + 1e-6),
    )
    return info, rows


def serve(args: argparse.Namespace, policy: str, port: int) -> int:
    """Keep everything up until Ctrl-C. Raises StackFailed, and ProcessFailed when a part ends on its own."""
    console = Console(soft_wrap=True)
    with Stack(args.engines, policy={"policy": policy}, port=port) as stack:
        first, second = _questions(stack)
        ask = f"curl -si {stack.url}{CHAT} -H 'content-type: application/json' -d"
        console.print(
            f"""\
{args.engines} engines are up behind Envoy, policy {policy}. Ctrl-C stops everything.

A session's first request, and then its second one, which carries the first and its answer:

  {ask} @{first}
  {ask} @{second}

x-engine in the answer says who served it. Envoy's access log has a line for each, with the decision under "smetric";
SMetric's "reason" is first_turn for the first and stick for the second:

  tail -n 2 {stack.access_log_path}

Look too at ext_proc and Envoy:

  curl -s {stack.metrics_url}/debug/state
  curl -s {stack.metrics_url}/metrics
  curl -s {stack.admin_url}/clusters""",
            highlight=False,
        )
        for _ in count():
            time.sleep(REFRESH)
            for child in stack.children:
                child.require()
    return 0


def _questions(stack: Stack) -> list[str]:
    """Files with the bodies of a session's first two requests; they go with the stack."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "hello"}]
    reply = [{"role": "assistant", "content": "Hello, what shall I do?"}, {"role": "user", "content": "read the log"}]
    paths = []
    for name, asked in (("first.json", messages), ("second.json", messages + reply)):
        path = stack.directory / name
        path.write_text(json.dumps({"messages": asked, "max_tokens": 12}, indent=1), "utf-8")
        paths.append(str(path))
    return paths


__all__ = ["StackFailed", "compare", "serve"]
