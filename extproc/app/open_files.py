"""Open files: how many a process may have, and how many the following of engines takes."""

from __future__ import annotations

import logging
import resource
from typing import Final

from extproc.base.model import Source
from extproc.config import Settings
from extproc.config.settings import instances

_log = logging.getLogger(__name__)

# Six of ZMQ are measured while a replay is open (events, monitor, replay, and what wakes each socket); a health check
# and a connection that begins again take one each.
EACH_INSTANCE: Final = 8
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
    endpoints = [
        endpoint
        for pool in settings.pools.values()
        if pool.source is Source.EVENTS
        for endpoint in pool.endpoints
        if endpoint.kv_events is not None
    ]
    return RESERVE + EACH_INSTANCE * sum(len(instances(endpoint, endpoint.host)) for endpoint in endpoints)


def shortage(settings: Settings, limit: int) -> str | None:
    """What an operator should know where the limit is too low; None where it is not."""
    count = needed(settings)
    if limit == resource.RLIM_INFINITY or count <= limit:
        return None
    return (
        f"{count} open files are needed to follow these engines and {limit} are allowed: beyond them the server hears "
        "no request. Raise the hard limit (ulimit -Hn, LimitNOFILE=, --ulimit nofile=)"
    )
