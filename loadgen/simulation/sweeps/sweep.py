"""Many simulations over all cores, each kept as a line as soon as it is done, so that an interrupted sweep goes on.

A scenario is recognised by its key, which says what differs from the defaults: a field that `Scenario` gets later
leaves older results valid. The key of a recorded trace has its content, too. Knows no measure by name and no
experiment.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import msgspec

from loadgen import simulation
from loadgen.results.measures import load_measures, measure
from loadgen.results.records import RunWriter
from loadgen.simulation.scenario import Scenario
from loadgen.simulation.sweeps.workers import Failed, spread
from loadgen.simulation.workload import LeftOut, Prepared

FILE = "sweep.jsonl"
LEFT_OUT = "left_out"  # what a job's measures hold besides
_DEFAULT = Scenario()

label = simulation.label
Measures = Mapping[str, Any]
Work = Callable[[Scenario, Path | None], Measures]  # simulate, keep the rows in that directory, and measure


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One line: `measures` or why there are none."""

    key: str
    scenario: Scenario
    content: str | None = None  # a digest of the recorded trace, where the workload is one
    measures: dict[str, Any] | None = None
    left_out: LeftOut | None = None
    error: str | None = None
    wall_s: float = 0.0


class SweepFailed(Exception):
    """The results' file cannot be read or written; the message says why."""


def key(scenario: Scenario, content: str | None = None) -> str:
    """16 hexadecimal digits: equal for equal scenarios, whatever defaults they spell out, and as read back from JSON.

    `content` is `simulation.content` of the workload: a trace that was edited is another one.
    """
    scenario = msgspec.convert(msgspec.to_builtins(scenario), Scenario)  # 3 for a float becomes 3.0
    chosen: dict[str, object] = {
        field.name: getattr(scenario, field.name)
        for field in fields(scenario)
        if getattr(scenario, field.name) != getattr(_DEFAULT, field.name)
    }
    if content is not None:
        chosen["content"] = content
    text = msgspec.json.encode(chosen, order="sorted", enc_hook=str)
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def simulated(scenario: Scenario, rows: Path | None) -> Measures:
    """Simulate and measure; with `rows`, keep the run there for figures. Raises ImpossibleScenario and TraceError."""
    prepared = _prepared(_trace_key(scenario))
    done = simulation.simulate(scenario, prepared.trace)
    info = simulation.info(scenario, done, prepared.left_out)
    if rows is not None:
        with RunWriter(rows, info) as writer:
            for row in done:
                writer.add(row)
    measured = measure(done, info, scenario.slo)
    if not measured.requests:
        raise simulation.ImpossibleScenario(simulation.idle(scenario))
    return {**msgspec.to_builtins(measured), LEFT_OUT: msgspec.to_builtins(prepared.left_out)}


def run(
    scenarios: Sequence[Scenario],
    path: Path,
    *,
    jobs: int | None = None,
    keep: Mapping[str, Path] | None = None,
    progress: Callable[[Result], None] | None = None,
    work: Work = simulated,
) -> list[Result]:
    """One result a scenario, in their order; what `path` has from earlier is not done again, but for failures.

    `jobs`: processes; None for one a core. `keep`: by key, where a run's rows are kept. `progress` hears of each
    result, of those from earlier too. Raises SweepFailed, and what interrupts it: what was done by then is kept.
    """
    keep = keep or {}
    contents = {workload: simulation.content(workload) for workload in {scenario.workload for scenario in scenarios}}

    def name_of(scenario: Scenario) -> str:
        return key(scenario, contents[scenario.workload])

    wanted = {name_of(scenario): scenario for scenario in scenarios}
    with _Lines(path) as lines:
        found = {
            result.key: result
            for result in lines.earlier
            if result.key in wanted and result.measures is not None and _kept(keep.get(result.key))
        }
        for result in found.values():
            if progress:
                progress(result)
        missing = [scenario for name, scenario in wanted.items() if name not in found]
        todo = [(scenario, keep.get(name_of(scenario))) for scenario in missing]
        for (scenario, _), outcome in spread(
            todo, partial(_timed, work), group=lambda job: _trace_key(job[0]), processes=jobs or os.cpu_count() or 1
        ):
            result = Result(key=name_of(scenario), scenario=scenario, content=contents[scenario.workload])
            if isinstance(outcome, Failed):
                result = msgspec.structs.replace(result, error=outcome.reason)
            else:
                measured, seconds = dict(outcome[0]), outcome[1]
                left = msgspec.convert(measured.pop(LEFT_OUT, None), LeftOut | None)
                left = left if left and left.requests else None
                result = msgspec.structs.replace(result, measures=measured, left_out=left, wall_s=round(seconds, 3))
            found[result.key] = result
            lines.add(result)
            if progress:
                progress(result)
    return [found[name_of(scenario)] for scenario in scenarios]


def read(path: Path) -> list[Result]:
    """The results of a file, the last of each scenario, in the order of their lines.

    Blank lines and a last line that was cut off are left out. Raises SweepFailed.
    """
    found: dict[str, Result] = {}
    number = 0
    try:
        with path.open("rb") as file:
            for line in file:
                number += 1
                if line.endswith(b"\n") and line.strip():
                    result = _result(line)
                    found.pop(result.key, None)
                    found[result.key] = result
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SweepFailed(f"{path}: {error.strerror}") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise SweepFailed(
            f"{path}:{number}: not a result of a sweep: {error}. Delete the line to have it simulated again, or move "
            "the file away to begin anew"
        ) from error
    return list(found.values())


def _result(line: bytes) -> Result:
    """Raises ValueError, of which msgspec's errors of the wrong shape are, for what no sweep has written."""
    result = msgspec.json.decode(line, type=Result)
    if key(result.scenario, result.content) != result.key:
        raise ValueError(f"key {result.key} belongs to another scenario than the one beside it, which was edited")
    if result.measures is not None:
        try:
            load_measures(result.measures)
        except msgspec.ValidationError as error:
            raise ValueError(f"measures: {error}") from error
    elif result.error is None:
        raise ValueError("it has neither measures nor an error")
    return result


def _kept(directory: Path | None) -> bool:
    return directory is None or (directory / "run.json").exists()


def _trace_key(scenario: Scenario) -> bytes:
    """The scenario without what a trace does not depend on."""
    base = Scenario(
        workload=scenario.workload,
        rate=scenario.rate,
        seed=scenario.seed,
        instances=scenario.instances,
        model=scenario.model,
        block_size=scenario.block_size,
        local_tokens=scenario.local_tokens,
        warmup_s=scenario.warmup_s,
        measure_s=scenario.measure_s,
        arrivals=scenario.arrivals,
    )
    return msgspec.json.encode(base)


@lru_cache(maxsize=1)
def _prepared(trace_key: bytes) -> Prepared:
    """Made once as long as scenarios of the same trace follow each other."""
    return simulation.prepared(msgspec.json.decode(trace_key, type=Scenario))


def _timed(work: Work, job: tuple[Scenario, Path | None]) -> tuple[Measures, float]:
    start = time.perf_counter()
    measured = work(*job)
    return measured, time.perf_counter() - start


class _Lines:
    """The results' file, open for one sweep alone. A context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: what did not fit on the disk would be tried again on closing, and fail again.
            self._file = path.open("a+b", buffering=0)
        except OSError as error:
            raise SweepFailed(f"{path}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.earlier = read(path)
            self._drop_half_a_line()
        except BlockingIOError as error:
            self._file.close()
            raise SweepFailed(f"{path}: another sweep is writing it") from error
        except OSError as error:
            self._file.close()
            raise SweepFailed(f"{path}: {error.strerror}") from error
        except SweepFailed:
            self._file.close()
            raise

    def add(self, result: Result) -> None:
        rest = memoryview(msgspec.json.encode(result) + b"\n")
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise SweepFailed(f"{self._path}: {error.strerror}; the results before are kept") from error

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _drop_half_a_line(self) -> None:
        text = self._path.read_bytes()
        if text and not text.endswith(b"\n"):
            self._file.truncate(text.rfind(b"\n") + 1)
