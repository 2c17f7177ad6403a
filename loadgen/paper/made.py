"""How a reproduction was made: command, code, machine and times, kept beside its results."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

FILE = "made.json"


class Made(msgspec.Struct, kw_only=True):
    """Of the last run that simulated anything. Times are UTC; `commit` is of the code that ran."""

    command: str
    started: str
    seconds: float
    jobs: int
    commit: str
    machine: str


def command(arguments: Sequence[str], here: Path) -> str:
    """The command as any reader can type it: paths below `here` are relative, of others the last part is left."""

    def portable(text: str) -> str:
        option, equals, value = text.partition("=")
        if equals and option.startswith("--"):
            return f"{option}={portable(value)}"
        path = Path(text)
        if not path.is_absolute():
            return text
        return str(path.relative_to(here)) if path.is_relative_to(here) else path.name

    return shlex.join(["python", "-m", "loadgen", *map(portable, arguments)])


def commit(root: Path) -> str:
    """The commit of the code, marked where files differ from it; "unknown" outside a repository."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)  # noqa: S603, S607
        return done.stdout.strip()

    found = git("rev-parse", "--short=10", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", "extproc", "loadgen")
    return f"{found}{' with local changes' if changed else ''}" if found else "unknown"


def machine() -> str:
    """Cores, their kind where Linux says it, and the Python."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    kind = re.search(r"model name\s*:\s*(.+)", text)
    cpu = kind[1].strip() if kind else platform.machine()
    return f"{os.cpu_count()} cores ({cpu}), {platform.system()}, Python {platform.python_version()}"


def write(made: Made, directory: Path) -> None:
    """Keep it. Raises OSError."""
    (directory / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n")


def read(directory: Path) -> Made | None:
    """What was kept; None of nothing that can be read."""
    try:
        return msgspec.json.decode((directory / FILE).read_bytes(), type=Made)
    except (OSError, msgspec.DecodeError):
        return None
