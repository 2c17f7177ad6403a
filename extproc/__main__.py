"""`python -m extproc`."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def _quit(_number: int, _frame: FrameType | None) -> None:
    """Until a server takes Ctrl-C for itself nothing needs an orderly end; an interrupted import would say much."""
    os._exit(130)


def _open_standard_files() -> None:
    """Where one of the three is closed, the next socket would get its number, and what is said there would go to it."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free


if __name__ == "__main__":
    _open_standard_files()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _quit)
    try:
        from extproc.cli import main

        sys.exit(main())  # a command imports more
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] == "extproc":
            raise
        sys.exit(
            f"extproc: {error}. This Python ({sys.executable}) lacks what extproc needs: "
            "run `make run` once or `pip install .`, then `.venv/bin/python -m extproc ...`"
        )
