"""From an index URL to an index: the one place that knows which backends exist."""

from __future__ import annotations

from extproc.base.errors import ConfigError
from extproc.index import Index
from extproc.index.memory import MemoryIndex
from extproc.index.piped import PREFIX, PipedIndex


def open_index(url: str) -> Index:
    """The index that `url` names: `memory://`, what `redis_url.parse` understands, or for a child `piped.url_of`.

    Opens no connection yet. Raises ConfigError for a URL that names no backend.
    """
    if url.startswith(PREFIX):
        return PipedIndex.from_url(url)
    scheme = url.partition("://")[0]
    if scheme == "memory":
        return MemoryIndex()
    if scheme in {"redis", "rediss", "unix"}:
        from extproc.index.redis import RedisIndex  # noqa: PLC0415 - memory:// needs no Redis client

        return RedisIndex.from_url(url)
    # Nothing of it is shown: it may be a password.
    raise ConfigError("this URL names no index: write memory:// or redis[s]://[USER:PASSWORD@]HOST:PORT/DB")
