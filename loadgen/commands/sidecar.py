"""`python -m loadgen sidecar`: a routing sidecar in front of one engine."""

from __future__ import annotations

import argparse

from aiohttp import web

from loadgen.engine import sidecar

DESCRIPTION = """\
Stand in front of one engine, as llm-d's routing sidecar does, until Ctrl-C or SIGTERM.

A request with the header x-prefiller-host-port is prefilled by that engine first; the KV is then pulled by the engine
behind the sidecar. All other requests pass unchanged.

example: a decode engine on port 8000, behind a sidecar on port 8001

  python -m loadgen engine --port 8000
  python -m loadgen sidecar --port 8001 --engine 127.0.0.1:8000
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--host", default="127.0.0.1", help="where to listen; 0.0.0.0 in a container (%(default)s)")
    parser.add_argument("--port", type=int, default=8001, help="(%(default)s)")
    parser.add_argument("--engine", required=True, metavar="HOST:PORT", help="the engine behind the sidecar")


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    web.run_app(
        sidecar.app(args.engine),
        host=args.host,
        port=args.port,
        access_log=None,
        print=None,
        handler_cancellation=True,  # a client that hangs up frees its request on both engines
    )
    return 0
