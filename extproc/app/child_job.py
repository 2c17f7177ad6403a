"""What a child of `serve` is to do: from process to process by the child's standard input, when it starts.

The settings go there that were checked, not the file that they came from: a half-done edit on disk must not meet a
child that is started again, and all processes of one `serve` decide alike. The index's URL goes there too, since every
user of a machine can read a command line, and the URL may hold a password.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from dataclasses import dataclass
from enum import StrEnum

from extproc import __version__
from extproc.app.options import Options
from extproc.base.errors import ConfigError
from extproc.config import Settings

_SIZE = 8  # bytes of the length before the job
_PART = 65536  # bytes at a time, whatever length is claimed


class Role(StrEnum):
    """What a child does, as its command line shows it too."""

    SERVE = "serve"  # another worker
    FOLLOW = "follow"  # the engines' events into the shared index


@dataclass(frozen=True, slots=True)
class ChildJob:
    """One child's work."""

    role: Role
    settings: Settings
    options: Options
    version: str = __version__

    def packed(self) -> bytes:
        """What `receive` reads."""
        data = pickle.dumps(self)
        return len(data).to_bytes(_SIZE, "big") + data


def receive(descriptor: int) -> ChildJob:
    """Read a job, and not a byte beyond it.

    Raises EOFError where the parent is gone before all was told, and ConfigError where its code is not ours.
    """
    size = int.from_bytes(_exactly(descriptor, _SIZE), "big")
    return _unpacked(_exactly(descriptor, size))


async def next_job(reader: asyncio.StreamReader) -> ChildJob:
    """The same, of a child that already works: its parent has other settings. Raises as `receive`."""
    try:
        size = int.from_bytes(await reader.readexactly(_SIZE), "big")
        return _unpacked(await reader.readexactly(size))
    except asyncio.IncompleteReadError as error:
        raise EOFError("the parent is gone") from error


def _unpacked(data: bytes) -> ChildJob:
    try:
        job = pickle.loads(data)  # noqa: S301 - from our own parent
        if not isinstance(job, ChildJob) or job.version != __version__:
            raise TypeError(f"version {getattr(job, 'version', 'unknown')}")
    except Exception as error:  # what unpickling may raise is anybody's guess
        raise ConfigError(f"`serve` runs code that is no longer installed ({error}): restart it as a whole") from error
    return job


def _exactly(descriptor: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(descriptor, min(size, _PART))
        if not part:
            raise EOFError("the parent is gone")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
