"""The Envoy configuration of a stack: the one that ships (envoy/envoy.yaml), with addresses and a policy of its own.

What is demonstrated and tested is therefore what an operator gets. Only what a stack must have different is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

SHIPPED = Path(__file__).parents[2] / "envoy" / "envoy.yaml"
HOST = "127.0.0.1"
# Demonstrations and tests kill and restart things and look again a moment later.
HEALTH_CHECK = {"interval": "1s", "no_traffic_interval": "1s", "unhealthy_interval": "0.5s", "timeout": "1s"}

Node = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoySettings:
    """What differs from the shipped configuration. All ports are on 127.0.0.1."""

    port: int
    admin_port: int
    access_log: Path  # one JSON object a line
    model_dir: Path
    engines: Sequence[Mapping[str, Any]]  # of each: port, and kv_events and kv_replay addresses
    extproc_ports: Sequence[int] = ()  # none: no ext_proc at all, Envoy's own fallback policy decides
    health_port: int = 0  # of the first of them; the others' are as far from it as their ports are from the first one's
    policy: Mapping[str, str] = field(default_factory=dict)  # x-smetric-* without the prefix: {"policy": "smetric"}
    cluster: Mapping[str, Any] = field(default_factory=dict)  # more keys of the cluster's metadata
    body_mode: str = "BUFFERED"
    message_timeout: str = "1s"  # of the ext_proc filter


def render(settings: EnvoySettings, shipped: Path = SHIPPED) -> str:
    """The configuration as YAML.

    Raises:
        OSError: the shipped configuration is not there.
        LookupError: it no longer has the parts that are changed here.
    """
    root: Node = yaml.safe_load(shipped.read_text("utf-8"))
    root["admin"] = {"address": _address(settings.admin_port)}
    static: Node = root["static_resources"]
    _listener(static["listeners"][0], settings)
    engines = _named(static["clusters"], "engines")
    _engines(engines, settings)
    extproc = _named(static["clusters"], "extproc")
    if settings.extproc_ports:
        _extproc(extproc, settings)
    else:
        static["clusters"].remove(extproc)
    return yaml.dump(root, sort_keys=False)


def _listener(listener: Node, settings: EnvoySettings) -> None:
    listener["address"] = _address(settings.port)
    manager: Node = listener["filter_chains"][0]["filters"][0]["typed_config"]
    log: Node = manager["access_log"][0]
    log["name"] = "envoy.access_loggers.file"
    log["typed_config"] |= {
        "@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog",
        "path": str(settings.access_log),
    }
    extproc = _named(manager["http_filters"], "envoy.filters.http.ext_proc")
    if not settings.extproc_ports:
        manager["http_filters"].remove(extproc)
        return
    config: Node = extproc["typed_config"]
    config["processing_mode"]["request_body_mode"] = settings.body_mode
    config["message_timeout"] = settings.message_timeout
    if settings.body_mode == "FULL_DUPLEX_STREAMED":
        config["processing_mode"]["request_trailer_mode"] = "SEND"  # Envoy demands it
        config["processing_mode"]["response_trailer_mode"] = "SEND"  # it would close the stream before the reply ends
        config["failure_mode_allow"] = False  # it cannot fail open, and says so
    given = {f"x-smetric-{key.replace('_', '-')}": str(value) for key, value in settings.policy.items()}
    kept = [entry for entry in config["grpc_service"]["initial_metadata"] if entry["key"] not in given]
    added = [{"key": key, "value": value} for key, value in given.items()]
    config["grpc_service"]["initial_metadata"] = kept + added


def _engines(cluster: Node, settings: EnvoySettings) -> None:
    cluster["type"] = "STATIC"
    for key in ("dns_lookup_family", "dns_refresh_rate"):
        cluster.pop(key, None)
    _notice_at_once(cluster)
    metadata = {"model_dir": str(settings.model_dir)} | dict(settings.cluster)
    cluster["metadata"]["filter_metadata"]["smetric"] |= metadata
    cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": [_engine(engine) for engine in settings.engines]}]


def _engine(engine: Mapping[str, Any]) -> Node:
    smetric = {key: value for key, value in engine.items() if key != "port"}
    return {
        "endpoint": {"address": _address(engine["port"])},
        "metadata": {"filter_metadata": {"smetric": smetric}},
    }


def _extproc(cluster: Node, settings: EnvoySettings) -> None:
    cluster["type"] = "STATIC"
    for key in ("dns_lookup_family", "dns_refresh_rate"):
        cluster.pop(key, None)
    _notice_at_once(cluster)
    to_health = settings.health_port - settings.extproc_ports[0]
    endpoints = [
        {"endpoint": {"address": _address(port), "health_check_config": {"port_value": port + to_health}}}
        for port in settings.extproc_ports
    ]
    cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]


def _notice_at_once(cluster: Node) -> None:
    for check in cluster.get("health_checks", ()):
        check |= HEALTH_CHECK
    # By default workers hear of changes at most once a second.
    cluster.setdefault("common_lb_config", {})["update_merge_window"] = "0s"


def _named(nodes: Sequence[Node], name: str) -> Node:
    for node in nodes:
        if node["name"] == name:
            return node
    raise LookupError(f"envoy/envoy.yaml has no {name}")


def _address(port: int) -> Node:
    return {"socket_address": {"address": HOST, "port_value": port}}
