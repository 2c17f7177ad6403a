"""The URL of a shared index: which parts are redis-py's, which are ours, and what of it may be logged.

It knows neither connections nor what is stored.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

from extproc.base.errors import ConfigError

DEFAULT_NAMESPACE = "smetric"
DEFAULT_BUDGET_MS = 20

_SCHEMES = frozenset({"redis", "rediss", "unix", "memory"})
_OPTIONS = re.compile("[?#].*", re.DOTALL)
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:\[\]/]*)(:[0-9]*)?(/.*)?")
_ENCODE = "Write /, ?, # and @ within a password as %2F, %3F, %23 and %40"


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
    parts = _taken_apart(url)
    if parts.scheme != "unix" and not parts.path.strip("/").isdigit() and parts.path not in {"", "/"}:
        raise _refused(url, "what follows the port is not the number of a database")
    query = dict(parse_qsl(parts.query))
    namespace = query.pop("namespace", DEFAULT_NAMESPACE)
    cluster = query.pop("cluster", "false").lower() in {"true", "yes", "1"}
    budget_ms = query.pop("budget_ms", str(DEFAULT_BUDGET_MS))
    if not budget_ms.isdecimal() or not int(budget_ms):
        raise _refused(url, "budget_ms is not a number of milliseconds")
    return RedisUrl(urlunsplit(parts._replace(query=urlencode(query))), namespace, cluster, int(budget_ms) / 1000)


def without_secrets(url: str) -> str:
    """The URL for logs: redis-py takes a password before the host, and among the options too.

    Where it cannot be told what is which, at most the scheme is shown.
    """
    scheme, _, rest = url.partition("://")
    secret, _, shown = rest.rpartition("@")
    shown = _OPTIONS.sub("", shown)
    if scheme not in _SCHEMES:
        return "..."
    if _OPTIONS.search(secret) or not _ADDRESS.fullmatch(shown):
        shown = "..."  # an option with an @, a password with a question mark, or a password where the port should be
    return f"{scheme}://{shown}"


def has_secret(url: str) -> bool:
    """Whether others should not see the URL."""
    return "@" in url or "password=" in url


def _taken_apart(url: str) -> SplitResult:
    """Raises ConfigError where a part is not what its place says; the cause could show a secret, and is not told."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - judged when it is read
    except ValueError:
        raise _refused(url, f"this is no host and port. {_ENCODE}") from None
    if "@" in parts.path + parts.fragment or any("@" in key for key, _ in parse_qsl(parts.query, True)):
        raise _refused(url, _ENCODE)
    return parts


def _refused(url: str, why: str) -> ConfigError:
    return ConfigError(f"index URL {without_secrets(url)!r}: {why}")
