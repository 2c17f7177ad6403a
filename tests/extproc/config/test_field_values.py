"""Values of a YAML are read as Envoy reads them: each case is also put to a real Envoy."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from extproc.config import nodes
from extproc.config.envoy_types import Cluster, ClusterDnsLookupFamily, ExternalProcessor
from extproc.config.field_values import fields_of, message_of
from loadgen.stack.parts import envoy_program

V6: Final = ClusterDnsLookupFamily.V6_ONLY
# A line of a cluster, what it says, and what is read: by Envoy's own reading of it.
ACCEPTED: Final[Mapping[str, tuple[str, Any]]] = {
    'respect_dns_ttl: "true"': ("respect_dns_ttl", True),
    'respect_dns_ttl: "yes"': ("respect_dns_ttl", True),
    "respect_dns_ttl: no": ("respect_dns_ttl", False),
    "respect_dns_ttl: null": ("respect_dns_ttl", False),
    "dns_lookup_family: V6_ONLY": ("dns_lookup_family", V6),
    "dnsLookupFamily: v6_only": ("dns_lookup_family", V6),
    'dns_lookup_family: "2"': ("dns_lookup_family", V6),
    "dns_refresh_rate: 5.5s": ("dns_refresh_rate", timedelta(seconds=5.5)),
    "dns_refresh_rate: {seconds: 5}": ("dns_refresh_rate", timedelta(seconds=5)),
    "per_connection_buffer_limit_bytes: 1": ("per_connection_buffer_limit_bytes", 1),
    'per_connection_buffer_limit_bytes: "32768"': ("per_connection_buffer_limit_bytes", 32768),
    "per_connection_buffer_limit_bytes: 8e3": ("per_connection_buffer_limit_bytes", 8000),
    'per_connection_buffer_limit_bytes: "8e3"': ("per_connection_buffer_limit_bytes", 8000),
    "per_connection_buffer_limit_bytes: 5.0": ("per_connection_buffer_limit_bytes", 5),
    "per_connection_buffer_limit_bytes: 0x50": ("per_connection_buffer_limit_bytes", 80),
    "per_connection_buffer_limit_bytes: {value: 5}": ("per_connection_buffer_limit_bytes", 5),
    "circuit_breakers: {thresholds: {max_retries: 5}}": ("circuit_breakers.thresholds.0.max_retries", 5),
    "circuit_breakers: {thresholds: [null, {maxRetries: 5}]}": ("circuit_breakers.thresholds.0.max_retries", 5),
    "lb_subset_config: {subset_selectors: [{keys: a}]}": ("lb_subset_config.subset_selectors.0.keys", ["a"]),
    'common_lb_config: {healthy_panic_threshold: {value: "5.5"}}': (
        "common_lb_config.healthy_panic_threshold.value",
        5.5,
    ),
}
HTTP: Final = "http_health_check: {path: /}}"  # another one of the same group
REFUSED: Final = (
    "alt_stat_name: 5",
    "alt_stat_name: [x]",
    "respect_dns_ttl: 1",
    "respect_dns_ttl: maybe",
    "dns_lookup_family: V5_ONLY",
    "dns_lookup_family: true",
    "dns_refresh_rate: 5",
    "dns_refresh_rate: 5ms",
    "dns_refresh_rate: -5s",
    "dns_refresh_rate: [5s]",
    "per_connection_buffer_limit_bytes: 5.5",
    "per_connection_buffer_limit_bytes: true",
    "per_connection_buffer_limit_bytes: -1",
    "per_connection_buffer_limit_bytes: 4294967296",
    'per_connection_buffer_limit_bytes: " 80"',
    "per_connection_buffer_limit_bytes: [5]",
    "common_lb_config: []",
    'common_lb_config: ""',
    "common_lb_config: {healthy_panic_threshold: {value: true}}",
    "lb_subset_config: {subset_selectors: [{keys: [1]}]}",
    "metadata: {filter_metadata: []}",
    "metadata: {filter_metadata: {a: 1}}",
    "health_checks: {timeout: 5s, interval: 5s, unhealthy_threshold: 1, healthy_threshold: 1, tcp_health_check: {}, "
    + HTTP,
)
DOCUMENT: Final = """
static_resources:
  clusters:
  - name: one
    type: STATIC
    load_assignment: {{cluster_name: one, endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address:
      {{address: 127.0.0.1, port_value: 80}}}}}}}}]}}]}}
    {line}
"""


def read(line: str) -> Cluster:
    """The cluster that has this line."""
    return message_of(Cluster, nodes.parse(line, "").plain())


@pytest.mark.parametrize("line", ACCEPTED)
def test_what_envoy_accepts(line: str) -> None:
    """It means to us what it means to Envoy."""
    path, expected = ACCEPTED[line]
    found: Any = read(line)
    for step in path.split("."):
        found = found[int(step)] if step.isdigit() else getattr(found, step)
    assert found == expected


@pytest.mark.parametrize("line", REFUSED)
def test_what_envoy_refuses(line: str) -> None:
    """It is refused, and the key is named."""
    with pytest.raises(ValueError, match=line.partition(":")[0]):
        read(line)


def test_the_tables_are_envoys(tmp_path: Path) -> None:
    """A real Envoy accepts and refuses the same."""
    wrong = []
    for line in (*ACCEPTED, *REFUSED):
        file = tmp_path / "envoy.yaml"
        file.write_text(DOCUMENT.format(line=line))
        command = [envoy_program(), "--mode", "validate", "-c", str(file), "-l", "off"]
        accepts = subprocess.run(command, capture_output=True, check=False).returncode == 0
        wrong += [line] if accepts is not (line in ACCEPTED) else []
    assert wrong == []


def test_fields_are_named_as_envoy_names_them() -> None:
    """Keys that are Python's words included; a map's values are no fields."""
    fields = fields_of(Cluster)
    assert fields["circuit_breakers"].message is not None
    assert fields["typed_extension_protocol_options"].message is None
    assert fields["dns_refresh_rate"].message is None
    assert "from" not in fields_of(ExternalProcessor)


def test_an_unknown_key_is_left_out() -> None:
    """A newer Envoy may know it; `spelling` says what should be said of it."""
    assert read("name: one\nnew_in_2030: 5").name == "one"
