"""`python -m loadgen demo`, which is `make run`: speaks at once, before `loadgen/demo/demo.py` is imported."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from extproc.routing.policies import registry
from loadgen.command_error import CommandError
from loadgen.commands import INTERRUPTED
from loadgen.commands.options import count
from loadgen.demo.words import NOTE, starting
from loadgen.stack.processes import ProcessFailed, listens

DESCRIPTION = """\
Run the same agent sessions through Envoy and ext_proc under one policy after the other, each time with fresh engines,
show what happens, and compare. Takes about a minute; Ctrl-C stops it and cleans up.

Real are Envoy, ext_proc, its index, HTTP, the KV events, tokenizer and prefix caches. Simulated are the engines' step
times and what they answer, and the agents.

examples:

  make run                                            SMetric, then round robin
  make run ARGS="--policy smetric,least-loaded --sessions 36"
  make run ARGS="--keep out/demo"                     also keep its logs, for `loadgen import`
  make run ARGS=--serve                               only start everything, for curl
"""

SERVE_PORT = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--sessions", type=count, default=24, metavar="N", help="agents at a time (%(default)s)")
    parser.add_argument("--turns", type=count, default=6, metavar="N", help="requests of each (%(default)s)")
    parser.add_argument("--engines", type=count, default=4, metavar="N", help="simulated engines (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the workload (%(default)s)")
    parser.add_argument(
        "--policy",
        default="smetric,round-robin",
        metavar="NAME[,NAME...]",
        help=f"policies to run, in this order (%(default)s), of {', '.join(registry.names())}",
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="keep there what each policy's run logged: Envoy's access log, the engines' logs, the requests' bodies",
    )
    parser.add_argument("--serve", action="store_true", help="start everything with the first policy and keep it up")
    parser.add_argument("--port", type=_port, metavar="N", help="where Envoy listens (10000 with --serve, else free)")


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C, or run every policy and compare."""
    policies = [name.strip() for name in args.policy.split(",") if name.strip()]
    known = registry.names()
    for name in policies or [args.policy]:
        if name not in known:
            raise CommandError(f"--policy {name}: there is no such policy, but {', '.join(known)}")
    port = args.port or (SERVE_PORT if args.serve else None)
    if port and listens(port):
        options = f"{'--serve ' if args.serve else ''}--port {port + 1}"
        raise CommandError(f'port {port} is in use by another program: choose another, make run ARGS="{options}"')
    _say(NOTE)
    if not args.serve:
        _say(
            f"{args.sessions} sessions of {args.turns} requests, a shared system prompt of 14,300 tokens, "
            f"{args.engines} engines; {' and '.join(policies)} in turn"
        )
    _say(starting(args.engines))
    try:
        demo = import_module("loadgen.demo.demo")  # a second of imports, after the first words
        try:
            code: int = demo.serve(args, policies[0], port) if args.serve else demo.compare(args, policies)
        except (demo.StackFailed, ProcessFailed) as error:
            raise CommandError(str(error)) from error
    except KeyboardInterrupt:
        _say("stopped; everything is cleaned up")
        return 0 if args.serve else INTERRUPTED
    return code


def _say(text: str) -> None:
    print(text, file=sys.stdout, flush=True)  # noqa: T201 - a command line speaks to its user


def _port(text: str) -> int:
    port = count(text)
    if port > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: they end at 65535")
    return port
