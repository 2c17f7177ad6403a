"""The log of a process that serves: a thread writes it, and nobody waits for who reads it."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import pytest

from extproc.app import log_writer
from extproc.base import metrics

READ_S = 20.0


def say(handler: logging.Handler, text: str) -> None:
    handler.handle(logging.makeLogRecord({"msg": text}))


def lost() -> float:
    return metrics.REGISTRY.get_sample_value("smetric_log_lines_lost_total") or 0.0


def test_lines_are_written_in_order(tmp_path: Path) -> None:
    """Those of the end too: a process waits for them."""
    with (tmp_path / "log").open("wb") as file:
        background = log_writer.Background(file.fileno())
        for number in range(100):
            say(background, f"line {number}")
        background.flush()
    assert (tmp_path / "log").read_text() == "".join(f"line {number}\n" for number in range(100))


def test_a_full_disk_costs_lines_and_nothing_else(tmp_path: Path) -> None:
    """Each is counted; once there is room again, the log says how many."""
    before = lost()
    with (tmp_path / "log").open("wb") as file, Path("/dev/full").open("wb") as full:
        descriptor = os.dup(full.fileno())
        background = log_writer.Background(descriptor)
        for number in range(3):
            say(background, f"lost {number}")
        background.flush()
        assert lost() - before == 3
        os.dup2(file.fileno(), descriptor)
        say(background, "there is room")
        say(background, "and it goes on")
        background.flush()
        os.close(descriptor)
    told = ["3 lines of this log could not be written", "there is room", "and it goes on"]
    assert (tmp_path / "log").read_text().splitlines() == told


@pytest.mark.parametrize("nonblocking", [False, True])
def test_a_reader_that_stalls_holds_up_nobody(*, nonblocking: bool) -> None:
    """A pipe that is full, as that of a stuck log collector: who logs goes on, a bounded number of lines waits, and
    what did not wait is told when the reader goes on."""
    reader, writer = os.pipe()
    os.set_blocking(writer, not nonblocking)
    background = log_writer.Background(writer, lines=50)
    for _ in range(1000):
        say(background, "x" * 1000)
    read: list[str] = []

    def read_all() -> None:
        with os.fdopen(reader) as file:
            read.extend(file)

    reading = threading.Thread(target=read_all)
    reading.start()
    background.flush()
    say(background, "the last")
    background.flush()
    os.close(writer)
    reading.join(READ_S)
    whole = [line for line in read if line == "x" * 1000 + "\n"]
    missing = [int(line.split()[0]) for line in read if "could not be written" in line]
    assert read[-1] == "the last\n"
    assert len(whole) + sum(missing) == 1000
    assert missing


def test_a_reader_that_is_gone(tmp_path: Path) -> None:
    """Nobody hears it, and nobody minds."""
    reader, writer = os.pipe()
    os.close(reader)
    before = lost()
    background = log_writer.Background(writer)
    say(background, "nobody")
    background.flush()
    os.close(writer)
    assert lost() - before == 1
