"""One Redis behind time budgets: fails fast while it is away, comes back alone, raises one error.

It owns the connections and the judgement whether Redis is there. It knows nothing of what is stored: `index/redis.py`
and `load_exchange.py` do.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from importlib import resources
from ipaddress import ip_address
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from redis.asyncio import Connection, Redis, RedisCluster, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

from extproc.base import metrics
from extproc.base.dns import look_up
from extproc.base.errors import ConfigError, IndexUnavailable

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

DEFAULT_NAMESPACE = "smetric"
DEFAULT_BUDGET_MS = 20

CONNECT_S = 1.0  # TCP, TLS and authentication across zones take tens of milliseconds; a lost packet 0.2 s
PROBE_S = 0.25  # between two looks whether Redis is back
# Failing for so long without any success means that Redis is away. A shorter hiccup (a fork, a failover within a
# proxy) costs the calls that it hits and no others: a decision without the index costs an engine a whole prefill.
PATIENCE_S = 0.25

Client = Redis | RedisCluster
Argument = bytes | str | int


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


def connect(address: RedisUrl, connections: int) -> Client:
    """A client that opens at most `connections` to a node, none of them yet. Raises ConfigError."""
    if not address.cluster:
        return connect_to_one(address, connections)
    try:
        cluster = RedisCluster.from_url(address.url, **_options(connections))
    except (ValueError, TypeError, RedisError) as error:
        raise ConfigError(f"index URL {without_secrets(address.url)!r}: {error}") from error
    # It takes no class of connections as an option, and makes its nodes, later ones too, from these.
    named = cluster.connection_kwargs["connection_class"] = _NAMED[cluster.connection_kwargs["connection_class"]]
    for node in cluster.startup_nodes:
        node.connection_class = named
    return cluster


def connect_to_one(address: RedisUrl, connections: int) -> Redis:
    """Like `connect`, to the server that the URL names, even where it is one node of a cluster. Raises ConfigError."""
    try:
        options = _options(connections)
        if address.url.startswith("unix:"):
            del options["socket_keepalive"]  # which redis-py does not know there
        client: Redis = Redis.from_url(address.url, **options)
        pool = client.connection_pool
        pool.connection_class = _NAMED.get(pool.connection_class, pool.connection_class)
        pool.connection_class(**pool.connection_kwargs)  # judges the options without connecting
    except (ValueError, TypeError, RedisError) as error:
        raise ConfigError(f"index URL {without_secrets(address.url)!r}: {error}") from error
    return client


def _options(connections: int) -> dict[str, Any]:
    return {
        "max_connections": connections,
        "socket_timeout": None,  # each call has its own budget
        "socket_connect_timeout": CONNECT_S,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 1),  # a connection that Redis closed meanwhile is replaced at once
        "client_name": "smetric-extproc",
        "protocol": 2,
    }


class _Named(Connection):
    """Connects only to what resolves, and asks by `base/dns.py`; the lookup that follows is then answered at once."""

    async def _connect(self) -> None:
        async with asyncio.timeout(self.socket_connect_timeout):
            try:
                ip_address(self.host)
            except ValueError:
                await look_up(self.host)
        await super()._connect()  # type: ignore[no-untyped-call]  # redis-py's abstract method, without annotations


class _NamedSSL(_Named, SSLConnection):
    """The same by TLS."""


_NAMED: dict[type, type[Connection]] = {Connection: _Named, SSLConnection: _NamedSSL}


class Script:
    """A Lua script that Redis runs atomically. Redis forgets scripts when it restarts; then its source is sent."""

    def __init__(self, source: str, keys: int) -> None:
        self._source = source.encode()
        self._digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        self._keys = keys

    @classmethod
    def read(cls, package: str, *names: str, keys: int) -> Script:
        """The script made of these Lua files of a package, one after the other; so many of its arguments are keys."""
        files = resources.files(package)
        return cls("\n".join(files.joinpath(f"{name}.lua").read_text() for name in names), keys)

    async def run(self, client: Client, keys_and_arguments: Sequence[Argument]) -> Any:
        """Its answer to one call."""
        try:
            return await client.execute_command("EVALSHA", self._digest, self._keys, *keys_and_arguments)
        except NoScriptError:
            return await client.execute_command("EVAL", self._source, self._keys, *keys_and_arguments)

    async def run_all(self, client: Client, calls: Sequence[Sequence[Argument]]) -> list[Any]:
        """Its answers to many calls in one round trip, in order; all of them have keys in one hash slot.

        Raises the first error; the calls after the failed one may have run.
        """
        for first in ("EVALSHA", "EVAL"):
            pipeline = client.pipeline(transaction=False)
            pipeline.execute_command(first, self._digest if first == "EVALSHA" else self._source, self._keys, *calls[0])
            for call in calls[1:]:
                pipeline.execute_command("EVALSHA", self._digest, self._keys, *call)
            answers: list[Any] = await pipeline.execute(raise_on_error=False)
            errors = [answer for answer in answers if isinstance(answer, Exception)]
            if not any(isinstance(error, NoScriptError) for error in errors):
                break
        if errors:
            raise errors[0]
        return answers


class Link:
    """Runs calls on a client within their budgets, a few at a time; while Redis is away it refuses them at once."""

    def __init__(self, client: Client, slots: int) -> None:
        self._client = client
        self._where = _where(client)
        self._slots = asyncio.Semaphore(slots)
        self._width = slots
        self._looked = asyncio.Event()  # whether `_there` says anything
        self._there = False
        self._failing_since: float | None = None
        self._probe: asyncio.Task[None] | None = None

    async def run(self, name: str, budget_s: float, call: Callable[[Client], Awaitable[_T]]) -> _T:
        """The result of `call`. Raises IndexUnavailable, counted under `name`, and nothing else."""
        loop = asyncio.get_running_loop()
        try:
            async with _Budget(budget_s):
                await self._connected()
                async with self._slots:
                    result = await call(self._client)
        except IndexUnavailable:
            metrics.INDEX_ERRORS.labels(name, "away").inc()
            raise
        except TimeoutError as error:
            self._failed(loop.time(), "it does not answer")
            metrics.INDEX_ERRORS.labels(name, "timeout").inc()
            raise IndexUnavailable(f"Redis did not answer {name} within {budget_s * 1e3:g} ms") from error
        except ResponseError as error:  # Redis is there, and refuses
            metrics.INDEX_ERRORS.labels(name, "refused").inc()
            raise IndexUnavailable(f"Redis refused {name}: {error}") from error
        except (RedisError, OSError) as error:
            self._failed(loop.time(), _why(error))
            metrics.INDEX_ERRORS.labels(name, "connection").inc()
            raise IndexUnavailable(f"Redis could not be reached for {name}: {error}") from error
        except Exception as error:
            _log.exception("a bug in index call %s", name)
            metrics.INDEX_ERRORS.labels(name, "bug").inc()
            raise IndexUnavailable(f"{name} failed: {error}") from error
        self._failing_since = None
        return result

    async def close(self) -> None:
        """Stop looking for Redis; the client is not closed."""
        if self._probe is not None:
            self._probe.cancel()
            with suppress(asyncio.CancelledError):
                await self._probe
        _OUTAGES.forget(self, self._where)

    async def _connected(self) -> None:
        """Only the first calls wait for a connection; while Redis is known to be away, calls are refused."""
        if not self._looked.is_set():
            self._look()
            await self._looked.wait()
        if not self._there:
            raise IndexUnavailable(f"Redis at {self._where} is away")

    def _failed(self, now: float, why: str) -> None:
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= PATIENCE_S and self._there:
            self._there = False
            _OUTAGES.begins(self, self._where, why)
            self._look()

    def _look(self) -> None:
        if self._probe is None or self._probe.done():
            self._probe = asyncio.get_running_loop().create_task(self._until_there())

    async def _until_there(self) -> None:
        """Open all connections ahead of the calls: their budgets may be shorter than a TLS handshake takes."""
        while True:
            try:
                async with asyncio.timeout(CONNECT_S):
                    pings = (self._client.execute_command("PING") for _ in range(self._width))
                    results = await asyncio.gather(*pings, return_exceptions=True)
                errors = [result for result in results if isinstance(result, BaseException)]
            except TimeoutError:
                errors = [TimeoutError("it does not answer")]
            if not errors:
                break
            if not self._looked.is_set():
                _OUTAGES.begins(self, self._where, _why(errors[0]))
                self._looked.set()
            await asyncio.sleep(PROBE_S)
        _OUTAGES.ends(self, self._where)
        self._there = True
        self._failing_since = None
        self._looked.set()


class _Outages:
    """Says once that a Redis is away and once that it is back, however many links of this process find out."""

    def __init__(self) -> None:
        self._away: dict[str, set[Link]] = {}

    def begins(self, link: Link, where: str, why: str) -> None:
        if where not in self._away:
            _log.warning("Redis at %s is away (%s); deciding by load until it is back", where, why)
        self._away.setdefault(where, set()).add(link)

    def ends(self, link: Link, where: str) -> None:
        if self.forget(link, where):
            _log.warning("Redis at %s is back", where)

    def forget(self, link: Link, where: str) -> bool:
        """Whether it was the last one that found Redis away."""
        away = self._away.get(where, set())
        last = away == {link}
        away.discard(link)
        if last:
            del self._away[where]
        return last


_OUTAGES = _Outages()


class _Budget:
    """`asyncio.timeout` that does not hold it against Redis when this process itself was busy as the time ran out.

    Then the answer may have long arrived, so the call gets a moment more to pick it up.
    """

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._timer = self._loop.call_later(self._budget_s, self._due, self._loop.time() + self._budget_s)

    async def __aexit__(self, *exception: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._timeout.__aexit__(*exception)

    def _due(self, when: float) -> None:
        now = self._loop.time()
        if now - when > 0.002:
            self._timer = self._loop.call_later(0.002, self._timeout.reschedule, now)
        else:
            self._timeout.reschedule(now)


def _where(client: Client) -> str:
    """Host and port, or the path of a socket, for people."""
    if isinstance(client, RedisCluster):
        return ", ".join(node.name for node in client.startup_nodes)
    options = client.connection_pool.connection_kwargs
    host, port = options.get("host", "localhost"), options.get("port", 6379)
    return str(options.get("path") or (f"[{host}]:{port}" if ":" in host else f"{host}:{port}"))


def _why(error: BaseException) -> str:
    """What redis-py wraps, in few words."""
    cause = error.__cause__ or error.__context__ or error
    if isinstance(cause, socket.gaierror):
        return "its name does not resolve"
    if isinstance(cause, ConnectionRefusedError):
        return "it refuses connections"
    return str(error)


def without_secrets(url: str) -> str:
    """The URL for logs: redis-py takes a password before the host, and among the options too."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))
