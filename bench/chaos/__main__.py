"""Break everything, one thing after the other, and see what it costs: `python -m bench.chaos`.

Real are Envoy (with the configuration that ships), Redis, the router (two workers and a follower) and the load: agents'
sessions of several turns with a shared system prompt. Simulated are eight engines, with real HTTP, caches and KV
events. The seed gives the order of the faults and every choice within them.

Each fault prints one line of JSON on stdout:

  lost        requests that failed though an engine could serve them. Only a reply that had begun (status 200) at an
              engine that was killed within the last seconds is `excused`: before that, Envoy must have tried another.
  undecided   requests that went on without a decision: no `smetric` in Envoy's access log. All are served.
  envoy       the same by Envoy's own counters, over all requests, hostile ones too.
  waited      what ext_proc added to a request, as Envoy measured it: headers and body.
  stall_s     the longest that a worker's loop was held by work of its own (the bound of a bucket).
  memory_mb   the most of each process.
  clean_s     from the end of the fault until every part says that it is well: all engines in the pool, healthy, not
              ejected, their events followed exactly, and all workers healthy at Envoy.
  exact_s     until every worker knows a prompt that each engine has just cached past all routers.

The last line is the verdict. The exit status is 1 when a request was lost, a load is left, a fault never healed, a bug
was caught, a process is left, or a process of the router has 5 % more memory after the end than in the second minute.

  python -m bench.chaos                                 ten minutes, every fault, seed 0
  python -m bench.chaos --seed 7 > chaos.jsonl          another order; progress goes to stderr
  python -m bench.chaos --only redis-kill --only bodies --minutes 2
  python -m bench.chaos --list                          what there is
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.chaos.faults import FAULTS
from bench.chaos.load import Tally
from bench.chaos.run import Outcome, Plan, Record, Run
from bench.chaos.world import World
from loadgen.stack.parts import StackFailed
from loadgen.stack.processes import ProcessFailed

GROWTH = 0.05  # of memory, from the second minute to the end: more is a leak
ROUTER = ("serve", "router: ")  # names of the router's processes


def main() -> int:
    """Run it; 0 when all went well."""
    options = _options()
    if options.list:
        for name, fault in FAULTS.items():
            print(f"{name:20} {fault.about}")
        return 0
    signal.signal(signal.SIGTERM, _interrupted)
    chosen = [FAULTS[name] for name in options.only or FAULTS]
    plan = Plan(60 * options.minutes, options.rate, options.seed, chosen, options.lasts)
    world = World(options.engines, options.seed, options.megabytes, options.logs)
    tally = Tally(world.killed)
    try:
        with world:
            _say(f"{options.minutes:g} minutes, {options.rate:g} requests a second, {len(chosen)} faults, {_load()}")
            _say(f"logs in {world.stack.directory}")
            outcome = asyncio.run(Run(world, plan, tally, _print).run())
    except (StackFailed, ProcessFailed) as error:
        print(f"bench.chaos: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench.chaos: interrupted", file=sys.stderr)
        return 130
    verdict = _verdict(outcome, tally, world)
    print(json.dumps(verdict), flush=True)
    for why in verdict["why"]:
        _say(f"NOT well: {why}")
    _say(f"{verdict['verdict']}; {_load()}")
    return 1 if verdict["why"] else 0


def _verdict(outcome: Outcome, tally: Tally, world: World) -> dict[str, Any]:
    """The last line; `why` says what is not well."""
    time.sleep(1)  # what was killed a moment ago is not yet gone
    left = world.left_over()
    memory = {name: [round(was, 1), round(now, 1)] for name, (was, now) in outcome.memory.items()}
    grown = {
        name: f"{was} MB in the second minute, {now} MB at the end"
        for name, (was, now) in memory.items()
        if name.startswith(ROUTER) and now > was * (1 + GROWTH)
    }
    why = [f"{record.fault} never healed: {record.unclean or 'a prompt is not known'}" for record in _unhealed(outcome)]
    if tally.lost:
        why.append(f"{tally.lost} requests lost: {dict(tally.errors)}")
    if outcome.loads:
        why.append(f"a load of {outcome.loads:g} is left")
    why += [f"memory of {name}: {said}" for name, said in grown.items()]
    why += [f"bug caught {count:g} times: {where}" for where, count in outcome.bugs.items()]
    why += [f"a process is left: {one}" for one in left]
    waited = sorted(outcome.seen.waited_ms)
    return {
        "verdict": "NOT well" if why else "well",
        "why": why,
        "faults": len(outcome.records),
        "untried": outcome.untried,
        "requests": tally.served + tally.lost + tally.excused,
        "lost": tally.lost,
        "excused": tally.excused,
        "unsent": tally.unsent,
        "undecided": outcome.seen.undecided,
        "waited_p99_ms": round(waited[int(0.99 * len(waited))], 1) if waited else None,
        "loads": outcome.loads,
        "unhealed": [record.fault for record in _unhealed(outcome)],
        "bugs": outcome.bugs,
        "left": left,
        "memory_mb": memory,
    }


def _unhealed(outcome: Outcome) -> list[Record]:
    return [record for record in outcome.records if record.clean_s is None or record.exact_s is None]


def _print(record: Record) -> None:
    print(json.dumps(asdict(record)), flush=True)
    healed = f"clean after {record.clean_s} s, exact after {record.exact_s} s"
    _say(
        f"{record.start_s:6.0f} s  {record.fault:18} {record.requests:4} requests, {record.lost} lost, "
        f"{record.undecided} undecided, p99 {record.waited_p99_ms} ms, {healed}"
        + (f"  {record.unclean}" if record.unclean else "")
        + (f"  {record.bugs}" if record.bugs else "")
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _load() -> str:
    return f"machine's load {Path('/proc/loadavg').read_text().split()[0]}"


def _interrupted(number: int, _frame: object) -> None:
    raise KeyboardInterrupt(number)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--minutes", type=float, default=10.0, help="of load (%(default)g); memory is judged from three on")
    add("--rate", type=float, default=50.0, help="requests a second (%(default)g)")
    add("--seed", type=int, default=0, help="of order and choices (%(default)s)")
    add("--only", action="append", choices=list(FAULTS), metavar="FAULT", help="this fault; may be given again")
    add("--engines", type=int, default=8, help="simulated ones (%(default)s)")
    add("--megabytes", type=float, default=4.0, help="of a hostile body (%(default)g)")
    add("--lasts", type=float, default=1.0, help="multiplies how long faults stay (%(default)g)")
    add("--logs", type=Path, metavar="DIR", help="keep the logs of all processes here (they go with the run)")
    add("--list", action="store_true", help="name all faults and say what they do")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
