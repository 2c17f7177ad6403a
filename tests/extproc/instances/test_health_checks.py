"""Active health checks: Envoy's rules as pure state, and real HTTP to hosts that answer in every way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from extproc.base.model import Instance
from extproc.config import HealthCheck
from extproc.instances.health_checks import HealthChecker
from extproc.instances.health_rules import Health, Result
from extproc.prompts.renderer import PlainRenderer
from extproc.routing.pools.pool import Pool
from tests.support.envoy_yaml import change, clean, cluster, inspect

PASSED, REFUSED, SILENT = Result.PASSED, Result.REFUSED, Result.SILENT
HOST = "10.0.0.1:8000"
CHECK = HealthCheck("/health", "engines", 0.1, 0.2, 2, 2, (range(200, 201),))


# Thresholds


@pytest.mark.parametrize(
    ("results", "healthy"),
    [
        ([], True),
        ([SILENT, SILENT], True),
        ([SILENT, SILENT, SILENT], False),
        ([SILENT, SILENT, PASSED, SILENT, SILENT], True),
        ([REFUSED], False),
        ([REFUSED, PASSED], False),
        ([REFUSED, PASSED, SILENT, PASSED], False),
        ([REFUSED, PASSED, PASSED], True),
        ([REFUSED, PASSED, PASSED, SILENT, SILENT], True),
    ],
)
def test_thresholds(results: Sequence[Result], *, healthy: bool) -> None:
    """Silence counts up to one threshold, success up to the other, each in a row; a wrong status counts at once."""
    health = Health(unhealthy_threshold=3, healthy_threshold=2)
    changes = [health.note(HOST, result) for result in results]
    assert (HOST not in health.unhealthy) is healthy
    assert sum(changes) % 2 == (not healthy)


def test_hosts_that_left_are_forgotten() -> None:
    """A host that returns starts as healthy as a new one."""
    health = Health(1, 1)
    held = health.unhealthy
    for host in ("a:1", "b:1"):
        health.note(host, SILENT)
    health.forget_all_but(["b:1"])
    assert held is health.unhealthy
    assert held == {"b:1"}


def test_the_unhealthy_are_not_chosen_unless_all_are() -> None:
    """As in Envoy's panic routing; a healthy host that is ejected is better than an unhealthy host."""
    a, b = (Instance(f"10.0.0.{n}:8000") for n in (1, 2))
    pool = Pool("pool", PlainRenderer(), instances=[a, b], unhealthy={a.address})
    assert pool.candidates(0.0) == [b]
    pool.ejections.unreachable(b.address, 0.0)
    assert pool.candidates(0.0) == [b]
    pool.unhealthy = {a.address, b.address}
    assert pool.candidates(0.0) == [a]
    pool.ejections.unreachable(a.address, 0.0)
    assert pool.candidates(0.0) == [a, b]


# Configuration


def test_the_shipped_check(tmp_path: Path) -> None:
    """envoy/envoy.yaml asks GET /health, and what Envoy would take for granted is filled in."""
    yaml = clean()
    found = inspect(yaml, tmp_path).settings
    assert found is not None
    assert found.pools["engines"].health_check == HealthCheck("/health", "engines", 5.0, 2.0, 2, 1, (range(200, 201),))
    http = {"path": "/ready", "host": "vllm.example", "expected_statuses": [{"start": 200, "end": 300}]}
    change(cluster(yaml, "engines"), "health_checks[0].http_health_check", http)
    found = inspect(yaml, tmp_path).settings
    assert found is not None
    check = found.pools["engines"].health_check
    assert check is not None
    assert (check.path, check.host, check.statuses) == ("/ready", "vllm.example", (range(200, 300),))


def test_without_a_check_nobody_is_asked(tmp_path: Path) -> None:
    """And nothing is said about it."""
    yaml = clean()
    del cluster(yaml, "engines")["health_checks"]
    report = inspect(yaml, tmp_path)
    assert report.settings is not None
    assert report.settings.pools["engines"].health_check is None
    assert not report.problems


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("health_checks[0].alt_port", 8080),
        ("health_checks[0].http_health_check.method", "HEAD"),
        ("health_checks[0].http_health_check.codec_client_type", "HTTP2"),
        ("load_assignment.endpoints[0].lb_endpoints[1].endpoint.health_check_config", {"port_value": 8080}),
        ("transport_socket", {"name": "tls"}),
    ],
)
def test_a_check_that_we_cannot_repeat(path: str, value: Any, tmp_path: Path) -> None:
    """A wrong verdict would be worse than none: it is not repeated, and the operator is told."""
    yaml = clean()
    change(cluster(yaml, "engines"), path, value)
    report = inspect(yaml, tmp_path)
    assert report.settings is not None
    assert report.settings.pools["engines"].health_check is None
    assert "cannot repeat this health check" in report.render()


# Real HTTP


class Host:
    """A host whose health answers as told."""

    def __init__(self) -> None:
        self.answers: int | None = 200  # None: never
        self.asked: list[str] = []

    async def __aenter__(self) -> Host:
        app = web.Application()
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.address = f"127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        self.asked.append(request.host)
        if self.answers is None:
            await asyncio.sleep(60)
        return web.Response(status=self.answers or 200, headers={"location": "/elsewhere"})


async def until(pool: Pool, unhealthy: set[str]) -> None:
    async with asyncio.timeout(10):
        while pool.unhealthy != unhealthy:
            await asyncio.sleep(0.01)


async def test_hosts_are_asked_and_believed() -> None:
    """Errors, redirects and silence make a host unhealthy, its neighbour stays in; success brings it back, and ends
    what requests made of it."""
    async with Host() as good, Host() as bad:
        pool = Pool("engines", PlainRenderer(), instances=[Instance(host.address) for host in (good, bad)])
        checker = HealthChecker({"engines": pool}, {"engines": CHECK})
        checker.start()
        for answers in (503, 307, 204, None):
            bad.answers = answers
            await until(pool, {bad.address})
            pool.ejections.unreachable(bad.address, 0.0)
            bad.answers = 200
            await until(pool, set())
            assert not pool.ejections
        assert set(bad.asked) == {"engines"}
        await checker.close()


async def test_nobody_there_and_nobody_known() -> None:
    """A closed port counts as silence, a host that left the pool is forgotten, and an empty pool is no trouble."""
    async with Host() as host:
        gone = Instance(host.address)
    pool = Pool("engines", PlainRenderer(), instances=[gone])
    checker = HealthChecker({"engines": pool}, {"engines": replace(CHECK, host="no header\n")})
    checker.start()
    await until(pool, {gone.address})
    pool.instances = []
    await until(pool, set())
    await checker.close()


async def test_ranks_share_one_check() -> None:
    """Data-parallel ranks are one host, asked once a round, and healthy or not together."""
    async with Host() as host:
        ranks = [Instance(host.address, rank) for rank in range(4)]
        pool = Pool("engines", PlainRenderer(), instances=ranks)
        host.answers = 500
        checker = HealthChecker({"engines": pool}, {"engines": replace(CHECK, interval_s=60.0)})
        checker.start()
        await until(pool, {host.address})
        assert len(host.asked) == 1
        await checker.close()
