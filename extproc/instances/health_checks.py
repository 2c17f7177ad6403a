"""The HTTP edge of active health checks: asks every host what Envoy asks it, since `override_host` ignores the result.

Envoy sends a request to the host that we name, healthy or not. A sick host is idle, and so the first choice of every
policy that balances; here its checks keep it out of the choice. No answer of a host can do harm, and each check
costs at most its time-out. Every process that decides asks by itself.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Set

import aiohttp

from extproc.config import HealthCheck
from extproc.instances.health_rules import Health, Result
from extproc.routing.pools.pool import Pool

_log = logging.getLogger(__name__)

CONCURRENCY = 64  # checks of one pool at a time
MIN_INTERVAL_S = 0.1  # a mistake in the YAML must not become a flood
# Of the interval, in both directions: processes that start together must not ask together for ever.
JITTER = 0.1


class HealthChecker:
    """Keeps `Pool.unhealthy` up to date, for the pools that have a check."""

    def __init__(self, pools: Mapping[str, Pool], checks: Mapping[str, HealthCheck]) -> None:
        """`checks` by the name of the pool. Asks no host before `start`."""
        self._pools = pools
        self._checks = checks
        self._session: aiohttp.ClientSession | None = None
        self._asking: dict[str, tuple[_Checked, asyncio.Task[None]]] = {}  # by pool

    def start(self) -> None:
        """Ask again and again, until `close`."""
        self._session = aiohttp.ClientSession(
            # A connection for each check: an engine may close a kept one at any moment, which is no failure.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._ask(self._checks)

    async def change(self, checks: Mapping[str, HealthCheck]) -> None:
        """Ask so from now on. Where a pool's check is as before, what is known of its hosts stays."""
        await self._leave({name for name, (asked, _) in self._asking.items() if checks.get(name) != asked.check})
        for name, (asked, _) in self._asking.items():
            asked.of(self._pools[name])
        self._ask({name: check for name, check in checks.items() if name not in self._asking})

    async def close(self) -> None:
        """Stop asking."""
        await self._leave(set(self._asking))
        if self._session is not None:
            await self._session.close()

    def _ask(self, checks: Mapping[str, HealthCheck]) -> None:
        assert self._session is not None
        for name, check in checks.items():
            asked = _Checked(self._pools[name], check)
            self._asking[name] = asked, asyncio.create_task(asked.follow(self._session))

    async def _leave(self, pools: Set[str]) -> None:
        left = [self._asking.pop(name) for name in pools]
        for asked, task in left:
            task.cancel()
            asked.end()
        await asyncio.gather(*(task for _, task in left), return_exceptions=True)


class _Checked:
    """One pool."""

    def __init__(self, pool: Pool, check: HealthCheck) -> None:
        self.check = check
        self._health = Health(check.unhealthy_threshold, check.healthy_threshold)
        self._limit = asyncio.Semaphore(CONCURRENCY)
        self.of(pool)

    def of(self, pool: Pool) -> None:
        """Speak of this pool from now on: it was made anew."""
        self._pool = pool
        pool.unhealthy = self._health.unhealthy

    def end(self) -> None:
        """Nobody checks the pool any more."""
        self._pool.unhealthy = None

    async def follow(self, session: aiohttp.ClientSession) -> None:
        """Round after round. A bug in one is logged and does not end the following."""
        interval_s = max(self.check.interval_s, MIN_INTERVAL_S)
        while True:
            try:
                hosts = {instance.address for instance in self._pool.instances}  # ranks share one
                self._health.forget_all_but(hosts)
                await asyncio.gather(*(self._look(session, host) for host in hosts))
            except Exception:
                _log.exception("checking the health of pool %s failed", self._pool.name)
            await asyncio.sleep(interval_s * random.uniform(1 - JITTER, 1 + JITTER))  # noqa: S311 - no secret

    async def _look(self, session: aiohttp.ClientSession, host: str) -> None:
        async with self._limit:
            result, said = await self._ask(session, host)
        if not self._health.note(host, result):
            return
        if result is Result.PASSED:
            self._pool.ejections.cleared(host)
            _log.info("pool %s: %s passes its health check again", self._pool.name, host)
        else:
            _log.warning("pool %s: %s fails its health check: %s", self._pool.name, host, said)

    async def _ask(self, session: aiohttp.ClientSession, host: str) -> tuple[Result, str]:
        check = self.check
        try:
            async with asyncio.timeout(check.timeout_s):
                url, headers = f"http://{host}{check.path}", {"host": check.host}
                # Where a redirect leads says nothing about this host.
                async with session.get(url, headers=headers, allow_redirects=False) as answer:
                    passed = any(answer.status in statuses for statuses in check.statuses)
                    return Result.PASSED if passed else Result.REFUSED, f"status {answer.status}"
        except TimeoutError:
            return Result.SILENT, f"no answer within {check.timeout_s:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Result.SILENT, f"{type(error).__name__}: {error}"
