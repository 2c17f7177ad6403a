"""What `make run` runs: agent sessions through a real Envoy, one policy after the other; or everything kept up."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from itertools import count

from rich.console import Console

from loadgen.demo import agents
from loadgen.demo import sessions as workload
from loadgen.demo.live import View, comparison, view
from loadgen.demo.sessions import Session
from loadgen.demo.summary import Summary, summarise
from loadgen.demo.watch import Watch
from loadgen.demo.words import starting
from loadgen.stack.stack import Stack, StackFailed

LIMIT = 70.0  # seconds that one policy may take: both together stay under three minutes
REFRESH = 0.25
LOG_S = 2.0  # what Envoy may take to write its last lines
# Long enough for several prompt blocks: what is shorter than one is never found in a cache.
SYSTEM = "You are a careful agent. Read before you write, and test what you wrote. " * 28


def compare(args: argparse.Namespace, policies: Sequence[str]) -> int:
    """Run the same sessions under each policy. Raises StackFailed and ProcessFailed."""
    console = Console(soft_wrap=True)
    sessions = workload.sessions(
        args.sessions, args.turns, system_bytes=40_000, seed=args.seed, turn_bytes=8_000, think_s=1.0
    )
    results: list[tuple[str, Summary]] = []
    for policy in policies:
        if results:
            console.print(starting(args.engines), highlight=False)
        with Stack(args.engines, policy={"policy": policy}, port=args.port) as stack, view(console) as shown:
            watch = Watch(stack, policy, args.sessions * args.turns)
            finished = asyncio.run(_run(watch, stack.url, sessions, shown))
            stack.access_log(len(watch.records), LOG_S)
            shown.show(watch.snapshot())
        if not finished:
            console.print(f"{policy}: cut off after {LIMIT:.0f} s; the figures are of what was finished until then")
        for error in sorted({record.error for record in watch.records if record.error}):
            console.print(f"{policy}: a request failed: {error}", highlight=False)
        results.append((policy, summarise(watch.records, [engine.address for engine in stack.engines])))
    console.print(comparison(results))
    return 1 if any(summary.failed for _, summary in results) else 0


async def _run(watch: Watch, url: str, sessions: Sequence[Session], shown: View) -> bool:
    """Run the sessions and show them meanwhile. False when their time was up before they were through."""
    showing = asyncio.create_task(_show(watch, shown))
    try:
        async with asyncio.timeout(LIMIT):
            await agents.run(url, sessions, on_record=watch.records.append)
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


def serve(args: argparse.Namespace, policy: str, port: int) -> int:
    """Keep everything up until Ctrl-C. Raises StackFailed, and ProcessFailed when a part ends on its own."""
    console = Console(soft_wrap=True)
    with Stack(args.engines, policy={"policy": policy}, port=port) as stack:
        first, second = _questions(stack)
        ask = f"curl -si {stack.url}{agents.CHAT} -H 'content-type: application/json' -d"
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
