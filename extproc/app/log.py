"""How every process of the product logs: to standard error, one line an event."""

from __future__ import annotations

import logging
import sys


def configure(level: str) -> None:
    """`level` is one of debug, info, warning, error."""
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
