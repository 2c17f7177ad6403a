"""Running a command that stays: what `serve` and `follow` do alike before and around it."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Callable, Coroutine

from extproc.app.options import Options
from extproc.base.errors import ConfigError
from extproc.cli.options import index_url
from extproc.config import Settings

_log = logging.getLogger(__name__)

Start = Callable[[Settings, Options], Coroutine[None, None, None]]


def run(arguments: argparse.Namespace, options_of: Callable[[argparse.Namespace, str], Options], start: Start) -> int:
    """0 when it was stopped, 1 where the configuration is wrong or a part cannot start, 2 where no file can be read.

    `options_of` gets the index's URL beside the arguments; it may raise ConfigError.
    """
    # Until the loop logs it instead, and inherited by children: its default ends a process without a drain.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    import uvloop

    from extproc import config
    from extproc.app import log_writer, open_files
    from extproc.shared_state.redis_url import has_secret

    log_writer.start()
    try:
        options = options_of(arguments, index_url(arguments))
        settings = config.load(arguments.envoy_yaml)
        if arguments.index is not None and has_secret(arguments.index):
            _log.warning(
                "every user of this machine can read the password in --index: use --index-file or SMETRIC_INDEX"
            )
        shortage = open_files.shortage(settings, open_files.raise_limit())
        if shortage is not None:
            _log.warning(shortage)
        uvloop.run(start(settings, options))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error.filename or arguments.envoy_yaml}: {error.strerror or error}", file=sys.stderr)
        return 2
    return 0
