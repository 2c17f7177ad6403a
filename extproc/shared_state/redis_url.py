"""The URL of a shared index: which parts are redis-py's, which are ours, and what of it may be logged.

It knows neither connections nor what is stored.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from extproc.base.errors import ConfigError

DEFAULT_NAMESPACE = "smetric"
DEFAULT_BUDGET_MS = 20


class RedisUrl(NamedTuple):
    """An index URL taken apart."""

    url: str  # as redis-py understands it
    namespace: str
    cluster: bool
    budget_s: float  # after which a decision goes without the index


def parse(url: str) -> RedisUrl:
    """`redis[s]://[USER:PASSWORD@]HOST:PORT/DB[?namespace=NAME][&cluster=true][&budget_ms=20]`.

    Other options of the query are redis-py's (`ssl_ca_certs=PATH` ...). Raises ConfigError.
    """
    parts = urlsplit(url)
    if parts.scheme != "unix" and not parts.path.strip("/").isdigit() and parts.path not in {"", "/"}:
        raise ConfigError(f"index URL {without_secrets(url)!r}: {parts.path!r} is not the number of a database")
    query = dict(parse_qsl(parts.query))
    namespace = query.pop("namespace", DEFAULT_NAMESPACE)
    cluster = query.pop("cluster", "false").lower() in {"true", "yes", "1"}
    budget_ms = query.pop("budget_ms", str(DEFAULT_BUDGET_MS))
    if not budget_ms.isdecimal() or not int(budget_ms):
        raise ConfigError(f"index URL {without_secrets(url)!r}: budget_ms={budget_ms} is not a number of milliseconds")
    return RedisUrl(urlunsplit(parts._replace(query=urlencode(query))), namespace, cluster, int(budget_ms) / 1000)


def without_secrets(url: str) -> str:
    """The URL for logs: redis-py takes a password before the host, and among the options too."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))
