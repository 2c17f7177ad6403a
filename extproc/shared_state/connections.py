"""Clients of redis-py, for one server or a cluster: their options, and how they look up names.

It opens nothing and runs nothing; `link.py` does, within budgets.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from redis.asyncio import Connection, Redis, RedisCluster, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.connection import AbstractConnection, RedisSSLContext
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from extproc.base.dns import look_up
from extproc.base.errors import ConfigError
from extproc.shared_state.redis_url import RedisUrl, without_secrets

NAME = "smetric-extproc"
CONNECT_S = 1.0  # TCP, TLS and authentication across zones take tens of milliseconds; a lost packet 0.2 s

Client = Redis | RedisCluster


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
        "protocol": 2,
    }


class _Introduced(AbstractConnection):
    """Has a name for people who look at Redis; who may not give one (hosted Redis, proxies) does without."""

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        await super().on_connect_check_health(check_health)
        await self.send_command("CLIENT", "SETNAME", NAME, check_health=False)
        with suppress(ResponseError):
            await self.read_response()


class _Named(_Introduced, Connection):
    """Connects only to what resolves, and asks by `base/dns.py`; the lookup that follows is then answered at once."""

    async def _connect(self) -> None:
        async with asyncio.timeout(self.socket_connect_timeout):
            try:
                ip_address(self.host)
            except ValueError:
                await look_up(self.host)
        await super()._connect()  # type: ignore[no-untyped-call]  # redis-py's abstract method, without annotations


class _NamedSSL(_Named, SSLConnection):
    """The same by TLS. Connections share what was read of certificates, until the files are others: to read the
    system's takes some ten milliseconds, in which no decision is made."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        asked = {name: str(value) for name, value in options.items() if name.startswith("ssl_")}
        key = tuple(sorted(asked.items())), tuple(map(_changed_at, sorted(asked.values())))
        if key not in _CONTEXTS:
            _CONTEXTS.clear()  # of files that were replaced
            _CONTEXTS[key] = self.ssl_context
        self.ssl_context = _CONTEXTS[key]


_CONTEXTS: dict[object, RedisSSLContext] = {}


def _changed_at(file: str) -> int:
    with suppress(OSError, ValueError):
        return Path(file).stat().st_mtime_ns
    return 0


class _Local(_Introduced, UnixDomainSocketConnection):
    """By a socket of this machine."""


_NAMED: dict[type, Any] = {
    Connection: _Named,
    SSLConnection: _NamedSSL,
    UnixDomainSocketConnection: _Local,
}


async def close(client: Client) -> None:
    """Disconnect. A cluster's client leaves its nodes connected where it was about to read the cluster's slots anew."""
    with suppress(Exception):  # the connections are given up in any case
        await client.aclose()
        if isinstance(client, RedisCluster):
            for nodes in ("nodes_cache", "startup_nodes"):
                await client.nodes_manager.aclose(nodes)


async def give_up_idle(client: Client) -> None:
    """Have the next calls connect anew: the address may lead to another server by now. A cluster tells where to go."""
    if not isinstance(client, RedisCluster):
        with suppress(RedisError, OSError):
            await client.connection_pool.disconnect(inuse_connections=False)


def where(client: Client) -> str:
    """Host and port, or the path of a socket, for people."""
    if isinstance(client, RedisCluster):
        return ", ".join(node.name for node in client.startup_nodes)
    options = client.connection_pool.connection_kwargs
    host, port = options.get("host", "localhost"), options.get("port", 6379)
    return str(options.get("path") or (f"[{host}]:{port}" if ":" in host else f"{host}:{port}"))
