"""`python -m extproc`."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def _quit(_number: int, _frame: FrameType | None) -> None:
    """Nothing runs yet, and an import that is interrupted would say so at length."""
    os._exit(130)


if __name__ == "__main__":
    before = signal.signal(signal.SIGINT, _quit)
    try:
        from extproc.cli import main
    except ImportError as error:
        sys.exit(
            f"extproc: {error}. This Python ({sys.executable}) lacks what extproc needs: "
            "run `make run` once or `pip install .`, then `.venv/bin/python -m extproc ...`"
        )
    signal.signal(signal.SIGINT, before)
    sys.exit(main())
