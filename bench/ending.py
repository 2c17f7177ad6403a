"""How a benchmark ends when it is told to: SIGTERM unwinds like Ctrl-C, so that whatever it started is stopped."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import NoReturn

INTERRUPTED = 130


def run(main: Callable[[], int | None], then: str = "interrupted") -> NoReturn:
    """Run a benchmark and exit by its status; `then` is said where it was interrupted."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background job would ignore it
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        status = main()
    except KeyboardInterrupt:
        print(then, file=sys.stderr)
        status = INTERRUPTED
    sys.exit(status or 0)
