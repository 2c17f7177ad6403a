"""What `make run` keeps of a run where it is asked to: a directory of logs, and the bodies that were sent."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from loadgen.command_error import CommandError

BODIES = "bodies.jsonl"  # as `loadgen import bodies` reads them


class Kept:
    """A new directory for one run."""

    def __init__(self, directory: Path) -> None:
        """Raises CommandError where there is one already: two runs in one log would be neither."""
        try:
            directory.mkdir(parents=True)
        except FileExistsError as error:
            raise CommandError(f"{directory}: is there already; choose another --keep, or remove it") from error
        except OSError as error:
            raise CommandError(f"{directory}: {error.strerror or error}") from error
        self.directory = directory
        self._bodies = directory / BODIES

    def body(self, body: bytes) -> None:
        """Keep the body of a request that is sent now."""
        with self._bodies.open("ab") as file:
            file.write(msgspec.json.encode({"time": time.time(), "body": msgspec.Raw(body)}) + b"\n")
