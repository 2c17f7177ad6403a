"""A process that serves waits for nobody who reads its log: a thread of its own writes the lines.

A full disk, a reader that is gone or one that reads no more (a pipe that is full) then costs lines, and no decision.
Lost lines are counted, and the log says how many once there is somewhere to write again. Refuses to know
what is logged.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
from queue import SimpleQueue
from typing import Final

from extproc.base import metrics

LINES: Final = 10_000  # that wait, a few MB; what comes while so many do is lost
FLUSH_S: Final = 1.0  # what the end of a process waits for its last lines
STDERR: Final = 2

_FIELDS: Final = {"name": __name__, "levelname": "WARNING", "levelno": logging.WARNING}


def start(descriptor: int = STDERR) -> None:
    """Let a thread write from now on what goes to standard error (`log.configure`)."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr:
            background = Background(descriptor)
            background.setFormatter(handler.formatter)
            root.removeHandler(handler)
            root.addHandler(background)


class Background(logging.Handler):
    """Writes to a descriptor, and never blocks or raises."""

    def __init__(self, descriptor: int, lines: int = LINES) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines = lines
        # Unlike a Queue it may be used again while it is used: by a finaliser that logs.
        self._waiting: SimpleQueue[str | threading.Event] = SimpleQueue()
        # Lines lost: each count has one writer.
        self._refused = self._unwritten = self._told = 0
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Have it written soon."""
        if self._waiting.qsize() >= self._lines:
            self._refused += 1
            metrics.LOG_LINES_LOST.inc()
            return
        try:
            self._waiting.put(self.format(record))
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Wait for what was logged before, but not for ever. Called at the end of a process."""
        written = threading.Event()
        self._waiting.put(written)
        written.wait(FLUSH_S)

    def _write_all(self) -> None:
        while True:
            line = self._waiting.get()
            if isinstance(line, threading.Event):
                line.set()
                continue
            missing = self._refused + self._unwritten - self._told
            if self._written(self._note(missing) + line + "\n"):
                self._told += missing
            else:
                self._unwritten += 1
                metrics.LOG_LINES_LOST.inc()

    def _note(self, missing: int) -> str:
        """What goes before a line that others are missing before."""
        if not missing:
            return ""
        said = {"msg": f"{missing} lines of this log could not be written"}
        return self.format(logging.makeLogRecord(_FIELDS | said)) + "\n"

    def _written(self, text: str) -> bool:
        rest = text.encode("utf-8", "backslashreplace")
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # somebody with the same descriptor made it so
                select.select((), (self._descriptor,), ())
            except OSError:
                return False
        return True
