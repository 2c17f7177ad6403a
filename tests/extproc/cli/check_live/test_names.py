"""Names of a pool as `serve` finds them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address

import pytest

from extproc.cli.check_live import names
from extproc.cli.check_live.findings import Outcome
from extproc.config import Discovery, DnsFamily, Endpoint, PoolSettings


async def find(*endpoints: Endpoint, family: DnsFamily = DnsFamily.V4_ONLY) -> names.Found:
    return await names.find(PoolSettings("pool", Discovery.STRICT_DNS, endpoints, dns_family=family))


async def test_instances_are_those_that_serve_finds() -> None:
    """Every rank of every address, and nothing said of addresses."""
    found = await find(
        Endpoint("localhost", 8000, kv_events="tcp://{address}:5557", data_parallel_size=2), Endpoint("10.0.0.1", 8000)
    )
    assert [instance.name for instance in found.instances] == [
        "127.0.0.1:8000/0",
        "127.0.0.1:8000/1",
        "10.0.0.1:8000",
    ]
    assert [(finding.what, finding.said) for finding in found.findings] == [("pool name localhost", "127.0.0.1")]


async def test_a_name_that_leads_nowhere_is_told() -> None:
    """Also one in the address of events; it keeps no other endpoint from being tried."""
    found = await find(
        Endpoint("engine.invalid", 8000),
        Endpoint("10.0.0.1", 8000, kv_events="tcp://events.invalid:5557", kv_replay="tcp://10.0.0.1:5558"),
    )
    assert [instance.address for instance in found.instances] == ["10.0.0.1:8000"]
    assert [finding.what for finding in found.findings if finding.outcome is Outcome.FAILED] == [
        "pool name engine.invalid",
        "pool name events.invalid",
    ]


@pytest.mark.parametrize("failure", [OSError(socket.EAI_AGAIN, "try again"), None], ids=["fails", "hangs"])
async def test_a_resolver_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, failure: OSError | None) -> None:
    """It is not waited for, and told."""

    async def resolve(_: str) -> Sequence[IPv4Address]:
        if failure is not None:
            raise failure
        await asyncio.sleep(600)
        return ()

    monkeypatch.setattr(names, "resolve", resolve)
    monkeypatch.setattr(names, "TRY_S", 0.01)
    (finding,) = (await find(Endpoint("engine-0", 8000))).findings
    assert finding.outcome is Outcome.FAILED
    assert "the resolver fails" in finding.said
