"""`extproc follow`: write the engines' KV events to a shared index."""

from __future__ import annotations

import argparse

from extproc.app.options import MEMORY, Address, Options
from extproc.base.errors import ConfigError
from extproc.cli import long_running, options

DESCRIPTION = """\
Follow the engines' KV events into a shared (redis://) index without serving Envoy. `serve` starts one such process by
itself; run more of them, anywhere, for takeover within seconds when one dies.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    options.add_log_level(parser)
    options.add_envoy_yaml(parser)
    options.add_watch(parser)
    options.add_metrics(parser)
    options.add_index(parser, options.REDIS_FORM)


def run(arguments: argparse.Namespace) -> int:
    """0 when it was stopped, 1 where the configuration is wrong or a part cannot start, 2 where no file can be read."""
    from extproc.app import workers

    return long_running.run(arguments, _options, workers.follow)


def _options(arguments: argparse.Namespace, index: str) -> Options:
    given = Options(
        listen=Address("", 0),
        health=Address("", 0),
        metrics=arguments.metrics,
        debug=arguments.debug,
        debug_tokens=options.debug_tokens(arguments),
        index=index,
        workers=1,
        drain_timeout_s=0.0,
        follow=True,
        watch=arguments.watch,
        log_level=arguments.log_level,
    )
    if not given.shared:
        raise ConfigError(f"--index {MEMORY}: no other process reads it; give the {options.REDIS_FORM} of the routers")
    return given
