"""Runs' directories and sweeps' files -> `Material`. Rows are reduced to what figures need as soon as they are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import msgspec

from loadgen.report.material import Group, Material, Point, Trail
from loadgen.results.measures import HALF_MINUTE, MINUTE, Measures, imbalances, load_measures, loads, measure
from loadgen.results.records import ROWS, RUN, Row, RunInfo, Slo, read_info
from loadgen.simulation.run_info import off
from loadgen.simulation.scenario import Scenario
from loadgen.simulation.sweeps import sweep
from loadgen.simulation.sweeps.table import notes as about

_AXES = frozenset({"policy", "options", "rate", "seed", "global_ratio", "slo"})  # fields that do not set groups apart

_REPLAYS = {"closed": "None", "scale": "1", "duration_s": "None"}  # what else sets replays apart, and its defaults


class Unreadable(Exception):
    """A path holds nothing that can be reported; the message says what is wrong with it."""


def read(paths: Iterable[Path], progress: Callable[[Path], None] = lambda path: None) -> Material:
    """Read runs and sweeps; `progress` hears of each. Raises Unreadable."""
    points: dict[tuple[str, ...], Point] = {}
    notes: list[str] = []
    for source in sources(paths):
        progress(source)
        for point in _sweep(source, notes) if source.is_file() else [_run(source, notes)]:
            key = tuple(map(str, (point.setting, point.label, point.ratio, point.rate, point.seed)))
            # A sweep that kept its rows has a run's directory for the same simulation: the one with rows says more.
            if key not in points or point.trail is not None:
                points[key] = point
    settings = dict.fromkeys(point.setting for point in points.values())
    groups = [Group(setting, [p for p in points.values() if p.setting == setting]) for setting in settings]
    if not groups:
        raise Unreadable("there is no finished simulation or run in what was given")
    if len(groups) > 1:
        notes.append(
            f"{len(groups)} different settings were given (workloads, machines, service levels): each has its own "
            "part, for their figures cannot be compared: " + "; ".join(group.title for group in groups)
        )
    return Material(groups, notes)


def sources(paths: Iterable[Path]) -> Iterator[Path]:
    """Each path's runs (directories) and sweeps (files): itself, or all directly inside. Raises Unreadable."""
    for path in paths:
        if path.is_file():
            yield path
        elif not path.is_dir():
            raise Unreadable(f"{path}: there is no such file or directory")
        elif found := [source for place in (path, *sorted(path.iterdir())) for source in _inside(place)]:
            yield from found
        else:
            raise Unreadable(
                f"{path}: neither {RUN} (of a simulation or a replay) nor {sweep.FILE} (of a sweep) is in it, nor in a "
                "directory below"
            )


def _inside(directory: Path) -> Iterator[Path]:
    if (directory / sweep.FILE).exists():
        yield directory / sweep.FILE
    if (directory / RUN).exists():
        yield directory


def _sweep(path: Path, notes: list[str]) -> Iterator[Point]:
    try:
        results = sweep.read(path)
    except sweep.SweepFailed as error:
        raise Unreadable(str(error)) from error
    failed = [result for result in results if result.measures is None]
    if failed:
        notes.append(f"{path}: {len(failed)} of {len(results)} simulations failed, the first with: {failed[0].error}")
    notes += [f"{path}: {note}" for note in about(results)]
    contents = {result.scenario.workload: result.content for result in results}  # the last of each
    for workload, content in contents.items():
        edited = [r for r in results if r.scenario.workload == workload and r.content != content]
        if edited:
            notes.append(f"{path}: {len(edited)} simulations of an earlier content of {workload} are left out")
    for result in results:
        scenario = result.scenario
        if result.measures is None or result.content != contents[scenario.workload]:
            continue
        yield Point(
            setting=_setting("simulate", _facts(scenario)),
            label=sweep.label(scenario),
            policy=scenario.policy,
            options=scenario.options,
            ratio=scenario.global_ratio,
            rate=scenario.rate,
            seed=scenario.seed,
            measures=load_measures(result.measures),
        )


def _run(path: Path, notes: list[str]) -> Point:
    try:
        info = read_info(path)
    except msgspec.DecodeError as error:
        raise Unreadable(f"{path / RUN}: not the description of a run: {error}") from error
    except OSError as error:
        raise Unreadable(f"{path / RUN}: {error.strerror}") from error
    rows = list(_rows(path, notes))
    if not info.complete and rows and info.window[1] <= info.window[0]:  # a replay's end is known when it has ended
        info.window = (info.window[0], max(row.end_s or row.sent_s for row in rows))
    if not info.complete:
        last = max((row.end_s or row.sent_s for row in rows), default=0.0)
        notes.append(
            f"{path}: the run was interrupted or still goes on: {len(rows)} requests until second {last:.0f} of "
            f"{info.window[1]:.0f}; figures are of these, and tokens a second are too low"
        )
    try:
        measures = measure(rows, info)
    except ValueError as error:
        raise Unreadable(f"{path / RUN}: window: {error}") from error
    notes += [f"{path}: {note}" for note in _odd(info, measures)]
    start, end = info.window
    due = [row for row in rows if start <= row.due_s < end]
    facts = {name: _text(value) for name, value in info.settings.items()}
    if info.kind == "simulate":  # a replay that was not told knows only the instances that answered
        facts["instances"] = str(len(info.instances))
    ratio = info.settings.get("global_ratio")
    return Point(
        setting=_setting(info.kind, {**facts, "workload": info.workload}),
        label=info.label,
        policy=info.policy,
        options=info.options,
        ratio=math.nan if ratio is None else float(ratio),
        rate=info.rate,
        seed=info.seed,
        measures=measures,
        trail=_trail(rows, due, info),
    )


def _odd(info: RunInfo, measures: Measures) -> Iterator[str]:
    """What a simulation was that was not asked for; a replay says it of itself."""
    if info.kind != "simulate":
        return
    requests, tokens = (float(info.settings.get(f"left_out_{name}") or 0.0) for name in ("requests", "tokens"))
    if requests:
        yield (
            f"{requests:.1%} of the requests, {tokens:.1%} of the tokens, are left out: no instance's cache holds them"
        )
    if share := off(info.rate, measures.requests_per_s):
        yield (
            f"{measures.requests_per_s:.3g} requests a second arrive in the window, {share:+.0%} against the "
            f"{info.rate:.4g} that were offered"
        )


def _trail(rows: Sequence[Row], due: Sequence[Row], info: RunInfo) -> Trail:
    return Trail(
        instances=info.instances,
        heat=loads(rows, info, MINUTE),
        windows=imbalances(loads(rows, info, HALF_MINUTE)),
        ttft=sorted(row.ttft_s for row in due if row.ttft_s is not None),
        tpot=sorted(row.tpot_s for row in due if row.tpot_s is not None),
    )


def _rows(path: Path, notes: list[str]) -> Iterator[Row]:
    """A run's rows; a last line that was cut off is left out. Raises Unreadable with the line's number."""
    decoder = msgspec.json.Decoder(Row)
    number = 0
    try:
        with (path / ROWS).open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.endswith(b"\n"):
                    yield decoder.decode(line)
                else:
                    notes.append(f"{path / ROWS}:{number}: the last line was cut off and is left out")
    except msgspec.DecodeError as error:
        raise Unreadable(f"{path / ROWS}:{number}: not a row of a run: {error}") from error
    except OSError as error:
        raise Unreadable(f"{path / ROWS}: {error.strerror}") from error


def _facts(scenario: Scenario) -> dict[str, str]:
    """A scenario's fields as text, under the names that a run's settings have."""
    found = {f.name: _text(getattr(scenario, f.name)) for f in fields(scenario) if f.name not in _AXES}
    return {**found, **{f"slo_{f.name}": _text(getattr(scenario.slo, f.name)) for f in fields(Slo)}}


def _text(value: object) -> str:
    """The same for 4 and 4.0."""
    return f"{value:.12g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _setting(kind: str, facts: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What sets a group apart: what it always names, and what is not the default."""
    defaults = {**_facts(Scenario()), **_REPLAYS}
    always = {"workload", "instances", "model"} & facts.keys()
    given = {
        name: facts[name] for name in defaults if name in facts and (name in always or facts[name] != defaults[name])
    }
    return (("kind", kind), *given.items())
