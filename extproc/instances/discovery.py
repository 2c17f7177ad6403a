"""From configured endpoints to instances, and following them: once for STATIC, by DNS, or through an EDS file.

It does what Envoy does with the same cluster, since Envoy ignores a host that it does not know: which addresses of a
name count, that a name which does not exist has none, and that a resolver which fails changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from extproc import config
from extproc.base.dns import look_up
from extproc.base.model import Instance
from extproc.config import DnsFamily, Endpoint, PoolSettings, Problem, Settings
from extproc.config.nodes import Malformed

_log = logging.getLogger(__name__)

Address = IPv4Address | IPv6Address
OnChange = Callable[[str, tuple[Instance, ...]], None]
Resolve = Callable[[str], Awaitable[Sequence[Address]]]

EDS_POLL_S = 0.5
# A resolver that does not answer must not keep the server from starting; what it answers later still counts.
FIRST_LOOK_S = 10.0
_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


async def resolve(host: str) -> Sequence[Address]:
    """Every address of a name; none where the name does not exist. Raises OSError where the resolver fails."""
    try:
        found = await look_up(host)
    except socket.gaierror as failure:
        if failure.errno in _NO_SUCH_NAME:
            return ()
        raise
    except UnicodeError:
        return ()  # no DNS name: a label is empty or too long
    # A link-local address comes with a zone, which Envoy does not name its hosts by.
    return [ip_address(address.partition("%")[0]) for address in found]


class Discovery:
    """Tells `on_change(pool, instances)` which instances a pool has: all of them, each time they change."""

    def __init__(self, settings: Settings, on_change: OnChange, resolve: Resolve = resolve) -> None:
        self._settings = settings
        self._make = partial(_watcher, on_change=on_change, resolve=resolve)
        self._watched: dict[str, tuple[_Watcher, asyncio.Task[None]]] = {}  # by pool

    async def start(self) -> None:
        """Look once at everything, at most FIRST_LOOK_S long, and go on looking until `close`."""
        await self._watch(self._settings.pools)

    async def change(self, settings: Settings) -> None:
        """Look at these pools from now on; those that are as before are not looked at anew."""
        before, self._settings = self._settings.pools, settings
        await self._leave({name for name in self._watched if settings.pools.get(name) != before.get(name)})
        await self._watch({name: pool for name, pool in settings.pools.items() if name not in self._watched})

    async def close(self) -> None:
        """Stop looking."""
        await self._leave(set(self._watched))

    async def _watch(self, pools: Mapping[str, PoolSettings]) -> None:
        begun = {name: self._make(pool) for name, pool in pools.items()}
        for name, watcher in begun.items():
            self._watched[name] = watcher, asyncio.create_task(watcher.follow())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_S):
                for watcher in begun.values():
                    await watcher.looked.wait()

    async def _leave(self, pools: Set[str]) -> None:
        tasks = [self._watched.pop(name)[1] for name in pools]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Watcher:
    """One pool. `look` finds its instances and reports a change; a failure leaves them as they were."""

    def __init__(self, pool: PoolSettings, on_change: OnChange) -> None:
        self.pool = pool
        self.every_s: float | None = None  # None: one look is enough
        self.looked = asyncio.Event()
        self._on_change = on_change
        self._known: tuple[Instance, ...] | None = None

    async def look(self) -> None:
        raise NotImplementedError

    async def follow(self) -> None:
        """Look again and again. A bug in one look is logged and does not end the following."""
        while True:
            try:
                await self.look()
            except Exception:
                _log.exception("looking for the instances of pool %s failed", self.pool.name)
            self.looked.set()
            if self.every_s is None:
                return
            await asyncio.sleep(self.every_s)

    def _found(self, instances: Sequence[Instance]) -> None:
        # Envoy has one host for an address, however often it is listed.
        distinct = tuple({instance.name: instance for instance in instances}.values())
        if distinct == self._known:
            return
        if self._known is not None:
            _log.info("pool %s: instances are %s", self.pool.name, ", ".join(i.name for i in distinct) or "none")
        self._known = distinct
        self._on_change(self.pool.name, distinct)


class _Static(_Watcher):
    """Addresses from the YAML."""

    async def look(self) -> None:
        self._found(_at_addresses(self.pool.endpoints))


class _Dns(_Watcher):
    """Names, resolved again at Envoy's interval. Each keeps its addresses while its resolver fails."""

    def __init__(self, pool: PoolSettings, on_change: OnChange, resolve: Resolve) -> None:
        super().__init__(pool, on_change)
        self.every_s = pool.dns_refresh_s
        self._resolve = resolve
        self._addresses: dict[str, Sequence[Address]] = {}
        self._failing: dict[str, str] = {}

    async def look(self) -> None:
        hosts = list(dict.fromkeys(endpoint.host for endpoint in self.pool.endpoints))
        await asyncio.gather(*(self._look_up(host) for host in hosts))
        found: list[Instance] = []
        for endpoint in self.pool.endpoints:
            for address in self._addresses.get(endpoint.host, ()):
                found += config.instances(endpoint, str(address))
        self._found(found)

    async def _look_up(self, host: str) -> None:
        try:
            addresses = await self._resolve(host)
        except OSError as failure:
            self._report(host, f"the resolver failed: {failure}")
        else:
            # In one order, however the resolver rotates them.
            self._addresses[host] = sorted(
                set(of_family(addresses, self.pool.dns_family)), key=lambda a: (a.version, a)
            )
            self._report(host, "" if self._addresses[host] else "it has no address")

    def _report(self, host: str, trouble: str) -> None:
        before = self._failing.pop(host, "")
        if trouble:
            self._failing[host] = trouble
            if trouble != before:
                _log.warning("pool %s: %s: %s", self.pool.name, host, trouble)
        elif before:
            _log.info("pool %s: %s resolves again", self.pool.name, host)


class _Eds(_Watcher):
    """A file that is replaced as the pool changes. Content that cannot be used is reported once and changes nothing."""

    def __init__(self, pool: PoolSettings, on_change: OnChange, path: Path) -> None:
        super().__init__(pool, on_change)
        self.every_s = EDS_POLL_S
        self._path = path
        self._seen: tuple[int, int, int] | str | None = None

    async def look(self) -> None:
        version = await asyncio.to_thread(_version, self._path)
        if version == self._seen:
            return
        first, self._seen = self._seen is None, version
        problems: list[Problem] = []
        try:
            endpoints = await asyncio.to_thread(config.eds_endpoints, self._path, self.pool.eds_service, problems)
        except (Malformed, OSError) as failure:
            _log.warning("pool %s: the EDS file %s cannot be used: %s", self.pool.name, self._path, failure)
            endpoints = None
        for problem in problems:
            _log.warning("pool %s: %s", self.pool.name, problem.render())
        names = [endpoint.host for endpoint in endpoints or () if not _is_address(endpoint.host)]
        if names:
            _log.warning(
                "pool %s: Envoy takes IP addresses alone from %s, not %s", self.pool.name, self._path, names[0]
            )
        if endpoints is not None and not problems and not names:
            self._found(_at_addresses(endpoints))
        elif first:
            self._found(())


def _watcher(pool: PoolSettings, on_change: OnChange, resolve: Resolve) -> _Watcher:
    if pool.eds_path is not None:
        return _Eds(pool, on_change, pool.eds_path)
    if pool.discovery is config.Discovery.STRICT_DNS:
        return _Dns(pool, on_change, resolve)
    return _Static(pool, on_change)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _at_addresses(endpoints: Sequence[Endpoint]) -> list[Instance]:
    found: list[Instance] = []
    for endpoint in endpoints:
        try:
            address = ip_address(endpoint.host)
        except ValueError:
            _log.warning("%s is no IP address; Envoy takes no names here", endpoint.host)
            continue
        found += config.instances(endpoint, str(address))
    return found


def of_family(addresses: Sequence[Address], family: DnsFamily) -> Sequence[Address]:
    """The addresses that Envoy's `dns_lookup_family` would take."""
    four = [address for address in addresses if address.version == 4]
    six = [address for address in addresses if address.version == 6]
    match family:
        case DnsFamily.ALL:
            return [*four, *six]
        case DnsFamily.V4_ONLY:
            return four
        case DnsFamily.V6_ONLY:
            return six
        case DnsFamily.V4_PREFERRED:
            return four or six
        case DnsFamily.AUTO:
            return six or four


def _version(path: Path) -> tuple[int, int, int] | str:
    """What changes when the file is replaced or written; the error where there is none."""
    try:
        stat = path.stat()
    except OSError as failure:
        return str(failure)
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
