"""Names of a pool as `serve` finds them."""

from __future__ import annotations

from extproc.cli.live import names
from extproc.cli.live.findings import Outcome
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
