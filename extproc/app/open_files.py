"""Open files: how many a process may have, and how many the following of engines takes."""

from __future__ import annotations

import logging
import resource
from typing import Final

from extproc.base.model import Source
from extproc.config import PoolSettings, Settings
from extproc.config.settings import instances
from extproc.kv_events import replay_turns

_log = logging.getLogger(__name__)

# Measured (`bench.many_engines`): the connection of the events, its monitor, and what wakes each of these two sockets.
EACH_INSTANCE: Final = 4
EACH_REPLAY: Final = 2  # its connection, and what wakes its socket; only so many have one at a time
HEALTH_CHECKS: Final = 64  # of a pool at a time; as in `instances/health_checks.py`, whose libraries load slowly
RESERVE: Final = 128  # libraries, listeners, Envoy's connections, Redis, scrapes


def raise_limit() -> int:
    """Raise the soft limit to the hard one, as Redis and HAProxy do; returns it. Children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # a hard limit above what the kernel allows
            _log.warning("the limit of open files stays at %d: %s", soft, error)
            return soft
        _log.info("raised the limit of open files from %d to %d", soft, hard)
    return hard


def attainable() -> int:
    """What `raise_limit` would come to."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def needed(settings: Settings) -> int:
    """What the process that follows the engines opens; names that stand for several addresses count as one."""
    return RESERVE + sum(map(_of_pool, settings.pools.values()))


def _of_pool(pool: PoolSettings) -> int:
    checked = sum(len(instances(endpoint, endpoint.host)) for endpoint in pool.endpoints)
    followed = sum(
        len(instances(endpoint, endpoint.host))
        for endpoint in pool.endpoints
        if pool.source is Source.EVENTS and endpoint.kv_events is not None
    )
    return (
        EACH_INSTANCE * followed
        + EACH_REPLAY * min(followed, replay_turns.AT_ONCE)
        + (min(checked, HEALTH_CHECKS) if pool.health_check is not None else 0)
    )


def shortage(settings: Settings, limit: int) -> str | None:
    """What an operator should know where the limit is too low; None where it is not."""
    count = needed(settings)
    if limit == resource.RLIM_INFINITY or count <= limit:
        return None
    return (
        f"{count} open files are needed to follow these engines and {limit} are allowed: some would not be followed. "
        "Raise the hard limit (ulimit -Hn, LimitNOFILE=, --ulimit nofile=)"
    )
