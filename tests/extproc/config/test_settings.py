"""From an endpoint and an address to instances."""

from __future__ import annotations

from extproc import config
from extproc.base.model import Role
from extproc.config import Endpoint


def test_an_endpoint_with_one_rank_is_one_instance() -> None:
    """`{address}` is its IP address."""
    (instance,) = config.instances(
        Endpoint("engine-0", 8000, "tcp://{address}:5557", "tcp://10.9.9.9:5558"), "10.0.0.7"
    )
    assert (instance.name, instance.rank) == ("10.0.0.7:8000", None)
    assert (instance.kv_events, instance.kv_replay) == ("tcp://10.0.0.7:5557", "tcp://10.9.9.9:5558")


def test_ranks_are_instances_at_one_address_with_ports_of_their_own() -> None:
    """Rank r publishes and replays on port + r, as vLLM does."""
    endpoint = Endpoint("e", 8000, "tcp://{address}:6000", "tcp://{address}:7000", Role.DECODE, 3)
    found = config.instances(endpoint, "10.0.0.7")
    assert [i.name for i in found] == ["10.0.0.7:8000/0", "10.0.0.7:8000/1", "10.0.0.7:8000/2"]
    assert [i.kv_events for i in found] == [f"tcp://10.0.0.7:{port}" for port in (6000, 6001, 6002)]
    assert [i.kv_replay for i in found] == [f"tcp://10.0.0.7:{port}" for port in (7000, 7001, 7002)]
    assert {i.role for i in found} == {Role.DECODE}


def test_ipv6_is_bracketed_everywhere() -> None:
    """As Envoy names its hosts, and as ZMQ wants its addresses."""
    (instance,) = config.instances(Endpoint("e", 8000, "tcp://{address}:5557", None), "fd00::7")
    assert (instance.address, instance.kv_events) == ("[fd00::7]:8000", "tcp://[fd00::7]:5557")


def test_an_endpoints_own_name_means_the_address_it_resolved_to() -> None:
    """A name with several addresses has a publisher at each of them."""
    (instance,) = config.instances(Endpoint("engine", 8000, "tcp://engine:5557", "tcp://other:5558"), "10.0.0.7")
    assert (instance.kv_events, instance.kv_replay) == ("tcp://10.0.0.7:5557", "tcp://other:5558")
