"""How busy this machine and some of its processes are, from /proc. Linux only."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")  # of /proc, a second


@dataclass(frozen=True, slots=True)
class Usage:
    """Between two looks. `machine` is a share of all cores, 0 to 1; `processes` are CPU seconds by name."""

    machine: float
    processes: Mapping[str, float]


class Meter:
    """Takes its first look at once. Processes are (name, pid); equal names are added up."""

    def __init__(self, processes: Iterable[tuple[str, int]]) -> None:
        self._processes = list(processes)
        self._began = time.monotonic()
        self._busy = _busy()
        self._spent = self._look()

    def read(self) -> Usage:
        """What was used since the first look; a process that has ended since counts as 0."""
        cores = os.cpu_count() or 1
        machine = (_busy() - self._busy) / (time.monotonic() - self._began) / cores
        spent = self._look()
        return Usage(machine, {name: max(0.0, spent[name] - before) for name, before in self._spent.items()})

    def _look(self) -> dict[str, float]:
        spent: dict[str, float] = {}
        for name, pid in self._processes:
            spent[name] = spent.get(name, 0.0) + _process(pid)
        return spent


def _busy() -> float:
    """CPU seconds of everybody since boot: user, nice, system, irq, softirq."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:8]]
    return (sum(fields) - fields[3] - fields[4]) / TICK


def _process(pid: int) -> float:
    """CPU seconds of a process, 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICK
