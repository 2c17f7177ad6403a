"""`python -m loadgen`."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def _quit(_number: int, _frame: FrameType | None) -> None:
    """Nothing runs yet, and an import that is interrupted would say so at length."""
    os.write(sys.stderr.fileno(), b"stopped; nothing had been started\n")
    os._exit(130)


if __name__ == "__main__":
    before = signal.signal(signal.SIGINT, _quit)
    try:
        from loadgen.cli import main
    except ImportError as error:
        sys.exit(f"loadgen: {error}. Run `make run`, or `pip install '.[demo]'` and then `.venv/bin/python -m loadgen`")
    signal.signal(signal.SIGINT, before)
    sys.exit(main())
