"""How a process takes over another configuration: an Envoy YAML that is edited while it serves.

`Configuration` belongs to the process that was started: it reads the file again when it is told to (SIGHUP, or a change
of the file with --watch), checks it, has it taken over here, and hands it to the children. What is wrong is said, and
the settings before it stay. `Changes` is how the parts of one process hear of it. Both refuse to know what changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from extproc import config
from extproc.app import open_files
from extproc.base import metrics
from extproc.base.errors import ConfigError
from extproc.config import Settings

_log = logging.getLogger(__name__)

LOOK_S: Final = 1.0  # between two looks at the file: what is written in pieces is read once it stays as it is
_REFUSED_LINES: Final = 40  # of a report in the log

Version = tuple[int, int, int] | None


class Changes:
    """Settings that are to take the place of those before."""

    def __init__(self) -> None:
        self._offered: asyncio.Queue[tuple[Settings, asyncio.Future[None]]] = asyncio.Queue()

    async def offer(self, settings: Settings) -> None:
        """Return when they are taken over. Raises what kept them from it."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._offered.put_nowait((settings, done))
        await done

    async def obey(self, change: Callable[[Settings], Awaitable[None]]) -> None:
        """Take over whatever is offered, one after the other, until cancelled."""
        while True:
            settings, done = await self._offered.get()
            try:
                await change(settings)
            except Exception as error:
                if not done.cancelled():
                    done.set_exception(error)
            else:
                if not done.cancelled():
                    done.set_result(None)


class Configuration:
    """The settings of one `serve` and its children."""

    def __init__(self, settings: Settings, changes: Changes) -> None:
        self.settings = settings
        self._changes = changes
        self._listeners: list[Callable[[Settings], None]] = []
        self._hurry = asyncio.Event()
        self._loaded = self._looked = time.time()
        self._refused = ""
        self._read = _version(settings.path)  # what was read last, right or wrong

    def shown(self) -> Mapping[str, Any]:
        """For `/debug/state`: since when these settings are in use, and why a later edit is not."""
        shown = {"path": str(self.settings.path), "loaded": _iso(self._loaded)}
        return shown | ({"refused": self._refused, "refused_at": _iso(self._looked)} if self._refused else {})

    @contextlib.contextmanager
    def told(self, listener: Callable[[Settings], None]) -> Iterator[None]:
        """While it lasts, `listener` gets what this process has taken over."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def hurry(self) -> None:
        """Read the file again, soon."""
        self._hurry.set()

    async def run(self, *, watch: bool) -> None:
        """Read the file again whenever that is asked for, and when it has changed if `watch`; until cancelled."""
        before = self._read
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S if watch else None):
                    await self._hurry.wait()
            asked = self._hurry.is_set()
            self._hurry.clear()
            now = await asyncio.to_thread(_version, self.settings.path)
            settled, before = now == before, now
            if asked or (settled and now != self._read):
                self._read = now
                await self._reload()

    async def _reload(self) -> None:
        path, before = self.settings.path, self.settings
        self._looked = time.time()
        try:
            settings = await asyncio.to_thread(config.load, path)
            await self._changes.offer(settings)
        except (ConfigError, OSError) as error:
            self._refuse(str(error))
            return
        except Exception:
            metrics.EXCEPTIONS.labels("reload").inc()
            _log.exception("a bug in taking over %s; the settings before it stay as far as they were not changed", path)
            self._refuse("a bug; see the log")
            return
        self.settings, self._loaded, self._refused = settings, self._looked, ""
        for listener in list(self._listeners):
            listener(settings)
        same = settings == before
        metrics.RELOADS.labels("unchanged" if same else "applied").inc()
        metrics.RELOAD_REFUSED.set(0)
        _log.info("%s: read again, %s", path, "nothing in it has changed" if same else _difference(before, settings))
        if (shortage := open_files.shortage(settings, open_files.raise_limit())) is not None:
            _log.warning(shortage)

    def _refuse(self, why: str) -> None:
        self._refused = why
        metrics.RELOADS.labels("refused").inc()
        metrics.RELOAD_REFUSED.set(1)
        shown = "\n".join(why.splitlines()[:_REFUSED_LINES])
        _log.error("the edited configuration is not used, what was loaded before stays:\n%s", shown)


def _difference(before: Settings, after: Settings) -> str:
    """What became of the pools, for the log."""
    kinds = {
        "new": after.pools.keys() - before.pools.keys(),
        "changed": {name for name, pool in after.pools.items() if before.pools.get(name, pool) != pool},
        "gone": before.pools.keys() - after.pools.keys(),
    }
    parts = [f"{kind}: {', '.join(sorted(names))}" for kind, names in kinds.items() if names]
    return "; ".join(parts) or "the pools are as before"


def _version(path: Path) -> Version:
    """What changes when the file is written or replaced, or a symbolic link on the way to it; None without one."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
