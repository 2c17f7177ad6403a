"""The processes of one `serve`: what they are told, and how."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from extproc import config
from extproc.app import workers
from extproc.app.child_job import Role
from extproc.app.options import Address, Debug, Options
from extproc.base.errors import ConfigError
from tests.support.paths import ROOT

SETTINGS = config.load(ROOT / "envoy" / "envoy.yaml")
OPTIONS = Options(
    listen=Address("127.0.0.1", 9002),
    health=Address("127.0.0.1", 9003),
    metrics=Address("127.0.0.1", 9090),
    index="redis://:geheim@127.0.0.1/0",
    workers=3,
    drain_timeout_s=1.5,
    follow=True,
    tls_cert=Path("cert.pem"),
    tls_key=Path("key.pem"),
    conformance=True,
    log_level="warning",
)


def test_workers_are_told_all_that_concerns_a_stream() -> None:
    """A worker that served plaintext beside one that serves TLS would fail every second request."""
    one, other, follower = workers.jobs(SETTINGS, OPTIONS)
    assert [job.role for job in (one, other, follower)] == [Role.SERVE, Role.SERVE, Role.FOLLOW]
    listens, health = Address("127.0.0.1", 9022), Address("127.0.0.1", 9023)
    metrics = Address("127.0.0.1", 9110)
    expected = replace(OPTIONS, listen=listens, health=health, metrics=metrics, workers=1, follow=False)
    assert other.options == expected


def test_everyone_gets_the_settings_that_were_checked() -> None:
    """And each follower keeps its name for as long as this `serve` lives, so that it takes its own leases over."""
    *_, follower = workers.jobs(SETTINGS, OPTIONS)
    assert all(job.settings is SETTINGS for job in workers.jobs(SETTINGS, OPTIONS))
    assert follower.options.replica
    assert follower.options.metrics == Address("127.0.0.1", 9120)


def test_children_are_only_those_that_are_needed() -> None:
    """Events are followed by a child, whatever the index; `--no-follow` leaves it to others."""
    (follower,) = workers.jobs(SETTINGS, replace(OPTIONS, index="memory://", workers=1))
    assert follower.role is Role.FOLLOW
    assert workers.jobs(SETTINGS, replace(OPTIONS, index="memory://", workers=1, follow=False)) == []
    assert len(workers.jobs(SETTINGS, replace(OPTIONS, follow=False))) == 2


def test_each_process_has_a_debug_address_of_its_own() -> None:
    """As it has one of metrics; what is off is off in all, and the tokens are everybody's."""
    own = replace(OPTIONS, debug=Address("127.0.0.1", 9091), debug_tokens=("secret",))
    assert [job.options.debug for job in workers.jobs(SETTINGS, own)] == [
        Address("127.0.0.1", port) for port in (9101, 9111, 9121)
    ]
    assert {job.options.debug_tokens for job in workers.jobs(SETTINGS, own)} == {("secret",)}
    assert {job.options.debug for job in workers.jobs(SETTINGS, replace(OPTIONS, debug=Debug.OFF))} == {Debug.OFF}
    assert "secret" not in repr(own)


async def test_ports_that_meet_are_refused() -> None:
    """Before any process starts."""
    with pytest.raises(ConfigError, match="come to port 9012"):
        await workers.serve(SETTINGS, replace(OPTIONS, health=Address("127.0.0.1", 9012)))
    with pytest.raises(ConfigError, match="both come to port 9100"):
        await workers.serve(SETTINGS, replace(OPTIONS, debug=Address("127.0.0.1", 9100)))
