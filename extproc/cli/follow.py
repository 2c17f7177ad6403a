"""`extproc follow`: write the engines' KV events to a shared index."""

from __future__ import annotations

import argparse
import sys

from extproc.app.options import Address, Options
from extproc.base.errors import ConfigError
from extproc.cli import options

DESCRIPTION = """\
Follow the engines' KV events into a shared (redis://) index without serving Envoy. `serve` starts one such process by
itself; run more of them, anywhere, for takeover within seconds when one dies.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    options.add_log_level(parser)
    options.add_envoy_yaml(parser)
    options.add_of_children(parser)
    options.add_metrics(parser)
    parser.add_argument("--index", required=True, metavar="URL", help="redis[s]://[USER:PASSWORD@]HOST:PORT/DB")


def run(arguments: argparse.Namespace) -> int:
    """0 when it was stopped, 1 where the configuration is wrong or a part cannot start, 2 where no file can be read."""
    import uvloop

    from extproc import config
    from extproc.app import serve

    given = Options(
        envoy_yaml=arguments.envoy_yaml,
        listen=Address("", 0),
        health=Address("", 0),
        metrics=arguments.metrics,
        index=arguments.index,
        workers=1,
        drain_timeout_s=0.0,
        follow=True,
        until_stdin_closes=arguments.until_stdin_closes,
        replica=arguments.replica,
    )
    try:
        if not given.shared:
            raise ConfigError(
                f"--index {given.index}: no other process reads it; give the redis:// that the routers use"
            )
        uvloop.run(serve.follow(config.load(given.envoy_yaml), given))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{given.envoy_yaml}: {error.strerror or error}", file=sys.stderr)
        return 2
    return 0
