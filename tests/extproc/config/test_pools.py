"""A pool from its cluster: discovery, endpoints, and the metadata on both."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc import config
from extproc.base.model import Engine, Role, Source
from extproc.config import Discovery, DnsFamily, Endpoint
from extproc.routing.pace import Given
from tests.support.envoy_yaml import (
    DELETE,
    ROOT,
    change,
    clean,
    cluster,
    inspect,
    read,
)


def test_metadata_is_read_from_cluster_and_endpoint(tmp_path: Path) -> None:
    """Every key of the contract has its effect."""
    yaml = clean()
    smetric = cluster(yaml, "engines")["metadata"]["filter_metadata"]["smetric"]
    smetric |= {"models": ["llama", "llama-fp8"], "prompt_block_bytes": 512, "source": "routed"}
    smetric |= {"prefill_byte_us": 3, "prefill_depth_bytes": 60_000}
    first, second, *_ = cluster(yaml, "engines")["load_assignment"]["endpoints"][0]["lb_endpoints"]
    first["metadata"]["filter_metadata"]["smetric"] = {"role": "prefill"}
    second["metadata"]["filter_metadata"]["smetric"] = {
        "role": "decode",
        "kv_events": "tcp://10.0.0.2:70",
        "kv_replay": "tcp://10.0.0.2:80",
        "data_parallel_size": 4,
    }
    pool = read(yaml, tmp_path).pools["engines"]
    assert pool.models == {"llama", "llama-fp8"}
    assert (pool.prompt_block_bytes, pool.source) == (512, Source.ROUTED)
    assert pool.pace == Given(3e-6, 60_000.0)
    assert pool.endpoints[0] == Endpoint("engine-0", 8000, None, None, Role.PREFILL, 1)
    assert pool.endpoints[1] == Endpoint("engine-1", 8000, "tcp://10.0.0.2:70", "tcp://10.0.0.2:80", Role.DECODE, 4)


def test_an_engine_may_connect_to_us(tmp_path: Path) -> None:
    """An address to bind is meant where it says so: 0.0.0.0 and a port of its own; SGLang is an engine by name."""
    yaml = clean()
    engines = cluster(yaml, "engines")
    engines["metadata"]["filter_metadata"]["smetric"]["engine"] = "sglang"
    first = engines["load_assignment"]["endpoints"][0]["lb_endpoints"][0]
    first["metadata"] = {"filter_metadata": {"smetric": {"kv_events": "tcp://0.0.0.0:7001"}}}
    pool = read(yaml, tmp_path).pools["engines"]
    assert pool.engine is Engine.SGLANG
    assert config.instances(pool.endpoints[0], "10.0.0.1")[0].kv_events == "tcp://0.0.0.0:7001"


def test_a_relative_model_dir_starts_at_the_yaml(tmp_path: Path) -> None:
    """Where the process was started from does not matter."""
    yaml = clean()
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny").symlink_to(ROOT / "loadgen" / "engine" / "model")
    change(cluster(yaml, "engines"), "metadata.filter_metadata.smetric.model_dir", "models/tiny")
    assert read(yaml, tmp_path).pools["engines"].model_dir == (ROOT / "loadgen" / "engine" / "model").resolve()


@pytest.mark.parametrize(
    ("model", "events", "expected"),
    [
        (True, True, Source.EVENTS),
        (True, False, Source.ROUTED),
        (False, True, Source.ROUTED),
        (False, False, Source.ROUTED),
    ],
)
def test_a_pool_without_model_files_or_events_is_routed(
    model: bool, events: bool, expected: Source, tmp_path: Path
) -> None:
    """`source` defaults to events where both halves are there to be compared, and to routed elsewhere."""
    yaml = clean()
    engines = cluster(yaml, "engines")
    change(engines, "metadata.filter_metadata.smetric.source", DELETE)
    if not model:
        change(engines, "metadata.filter_metadata.smetric.model_dir", DELETE)
    for endpoint in () if events else engines["load_assignment"]["endpoints"][0]["lb_endpoints"]:
        del endpoint["metadata"]
    assert read(yaml, tmp_path).pools["engines"].source is expected


def test_endpoints_that_envoy_leaves_out_are_left_out(tmp_path: Path) -> None:
    """Health status DRAINING, UNHEALTHY or TIMEOUT means no requests; DEGRADED still serves."""
    yaml = clean()
    endpoints = cluster(yaml, "engines")["load_assignment"]["endpoints"][0]["lb_endpoints"]
    for endpoint, status in zip(endpoints, ("DRAINING", "UNHEALTHY", "TIMEOUT", "DEGRADED"), strict=True):
        endpoint["health_status"] = status
    assert [e.host for e in read(yaml, tmp_path).pools["engines"].endpoints] == ["engine-3"]


def test_the_dns_extension_is_followed_like_strict_dns(tmp_path: Path) -> None:
    """`cluster_type: envoy.cluster.dns` is Envoy's newer way to write STRICT_DNS."""
    yaml = clean()
    engines = cluster(yaml, "engines")
    for key in ("type", "dns_lookup_family"):
        del engines[key]
    url = "type.googleapis.com/envoy.extensions.clusters.dns.v3.DnsCluster"
    typed = {"@type": url, "dns_refresh_rate": "2.5s", "dns_lookup_family": "V6_ONLY"}
    engines["cluster_type"] = {"name": "envoy.cluster.dns", "typed_config": typed}
    pool = read(yaml, tmp_path).pools["engines"]
    assert (pool.discovery, pool.dns_family, pool.dns_refresh_s) == (Discovery.STRICT_DNS, DnsFamily.V6_ONLY, 2.5)
    typed["all_addresses_in_single_endpoint"] = True
    assert "single host" in inspect(yaml, tmp_path).render()
