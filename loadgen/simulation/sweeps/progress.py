"""What one sees of a sweep while it goes on: a bar on a terminal, nothing anywhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from loadgen.simulation.sweeps.sweep import Result


@contextmanager
def progress(total: int, text: str = "simulating") -> Iterator[Callable[..., None]]:
    """A bar on stderr, on a terminal alone; to be told of each result, if there is one to tell."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[failed]}", style="red"),
        console=Console(stderr=True),
    )
    bar.disable = not bar.console.is_terminal
    task = bar.add_task(text, total=total, failed="")
    failures = 0

    def advance(result: Result | None = None) -> None:
        nonlocal failures
        failures += result is not None and result.error is not None
        bar.update(task, advance=1, failed=f"{failures} failed" if failures else "")

    with bar:
        yield advance
