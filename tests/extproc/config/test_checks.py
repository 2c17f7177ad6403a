"""Every trap that `check` knows, set in the shipped configuration, one at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from extproc import config
from extproc.config import Severity
from tests.support.envoy_yaml import DELETE, Yaml, change, clean, cluster, ext_proc, inspect, listener, manager, path_of

E, W = Severity.ERROR, Severity.WARNING
SMETRIC = "metadata.filter_metadata.smetric"
HCM = "filter_chains[0].filters[0].typed_config"
FILTER = "http_filters[1].typed_config"
ENDPOINTS = "load_assignment.endpoints[0].lb_endpoints"
SOURCE = {"metadata": {"key": "envoy.lb", "path": [{"key": "x-gateway-destination-endpoint"}]}}
HEADER = {"header": "x-gateway-destination-endpoint"}
ROUTE = "route_config.virtual_hosts[0].routes[0]"
OVERRIDE_HOST = "load_balancing_policy.policies[0].typed_extension_config.typed_config"
EXT_PROC = "envoy.filters.http.ext_proc"
URL = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3"
UPSTREAM = "typed_extension_protocol_options"

PREFILL = {"role": "prefill", "kv_events": "tcp://{address}:5557", "kv_replay": "tcp://{address}:5558"}
ONE_PREFILL = [
    {
        "endpoint": {"address": {"socket_address": {"address": "engine-0", "port_value": 8000}}},
        "metadata": {"filter_metadata": {"smetric": PREFILL}},
    }
]

Trap = Callable[[Yaml], None]


def at_filter(path: str, value: Any) -> Trap:
    """Change the ext_proc filter."""
    return lambda yaml: change(ext_proc(yaml), path, value)


def at_manager(path: str, value: Any) -> Trap:
    """Change the HTTP connection manager."""
    return lambda yaml: change(manager(yaml), path, value)


def at_engines(path: str, value: Any) -> Trap:
    """Change the pool's cluster."""
    return lambda yaml: change(cluster(yaml, "engines"), path, value)


def at_pool(key: str, value: Any) -> Trap:
    """Change our metadata on the pool's cluster."""
    return at_engines(f"{SMETRIC}.{key}", value)


def at_extproc(path: str, value: Any) -> Trap:
    """Change the cluster of the ext_proc server."""
    return lambda yaml: change(cluster(yaml, "extproc"), path, value)


def at_endpoint(key: str, value: Any) -> Trap:
    """Change our metadata on the first endpoint."""
    return at_engines(f"{ENDPOINTS}[0].{SMETRIC}.{key}", value)


def all_of(*traps: Trap) -> Trap:
    """Several changes at once."""

    def apply(yaml: Yaml) -> None:
        for trap in traps:
            trap(yaml)

    return apply


def metadata(key: str, value: str) -> Trap:
    """Set one entry of the filter's initial metadata."""

    def apply(yaml: Yaml) -> None:
        entries = ext_proc(yaml)["grpc_service"]["initial_metadata"]
        entries[:] = [entry for entry in entries if entry["key"] != key] + [{"key": key, "value": value}]

    return apply


def per_route(url: str | None, **fields: Any) -> Trap:
    """Change the filter on the first route, by a message of this type."""

    def apply(yaml: Yaml) -> None:
        message = ({} if url is None else {"@type": url}) | fields
        manager(yaml)["route_config"]["virtual_hosts"][0]["routes"][0]["typed_per_filter_config"] = {EXT_PROC: message}

    return apply


def regex(pattern: str, substitution: str) -> Yaml:
    """A rewrite by a regular expression."""
    return {"pattern": {"regex": pattern}, "substitution": substitution}


def template(field: str, kind: str, **typed: str) -> Yaml:
    """A path template, to match or to rewrite by."""
    url = f"type.googleapis.com/envoy.extensions.path.{kind}.uri_template.v3.UriTemplate{kind.title()}Config"
    return {field: {"name": kind, "typed_config": {"@type": url, **typed}}}


def another_service(yaml: Yaml) -> None:
    """A route to a cluster of somebody else's, with Envoy's defaults."""
    routes = manager(yaml)["route_config"]["virtual_hosts"][0]["routes"]
    routes.insert(0, {"match": {"prefix": "/ui"}, "route": {"cluster": "extproc"}})


def decompressor(position: int) -> Trap:
    """A decompressor among the filters."""
    url = "type.googleapis.com/envoy.extensions.filters.http.decompressor.v3.Decompressor"
    entry = {"name": "decompressor", "typed_config": {"@type": url}}
    return lambda yaml: manager(yaml)["http_filters"].insert(position, entry)


def short_streams(name: str) -> Trap:
    """A limit on how long a stream to this cluster may last."""
    kind = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    limit = {"max_stream_duration": "60s"}
    return lambda yaml: change(cluster(yaml, name)[UPSTREAM][kind], "common_http_protocol_options", limit)


def second_filter(yaml: Yaml) -> None:
    """The ext_proc filter once more."""
    filters = manager(yaml)["http_filters"]
    filters.insert(2, copy.deepcopy(filters[1]) | {"name": "ext_proc again"})


# trap, severity, where the problem is said to be (the end of its path), what is said, what to write instead
TRAPS: dict[str, tuple[Trap, Severity, str, str, str]] = {
    # metadata under smetric
    "unknown key": (at_pool("modle", 1), E, "smetric.modle", "did you mean model", "model_dir"),
    "key of an endpoint": (at_pool("role", "both"), E, "smetric.role", "not belong here", "endpoint"),
    "key of the cluster": (at_endpoint("source", "routed"), E, "smetric.source", "not belong here", "the cluster"),
    "no mapping": (at_engines(SMETRIC, "x"), E, SMETRIC, "not a mapping", "model_dir"),
    "model_dir of a wrong type": (at_pool("model_dir", [1]), E, "model_dir", "a list", "string"),
    "model_dir missing": (at_pool("model_dir", "/nowhere"), E, "model_dir", "no directory", "tokenizer"),
    "models of a wrong type": (at_pool("models", {"a": 1}), E, "models", "a mapping", "[name, ...]"),
    "block size of a wrong type": (
        at_pool("prompt_block_bytes", "many"), E, "prompt_block_bytes", "a string", "from 16 to 65,536",
    ),
    "block size too small": (
        at_pool("prompt_block_bytes", 8), E, "prompt_block_bytes", "is 8", "from 16 to 65,536",
    ),
    "block size too large": (
        at_pool("prompt_block_bytes", 65537), E, "prompt_block_bytes", "is 65537", "from 16 to 65,536",
    ),
    "pace of a wrong type": (at_pool("prefill_fetch_us", "fast"), E, "prefill_fetch_us", "a string", "it is learnt"),
    "pace that cannot be": (at_pool("prefill_byte_us", 0), E, "prefill_byte_us", "is 0", "above 0"),
    "unknown source": (at_pool("source", "event"), E, "source", "did you mean events?", "routed"),
    "unknown engine": (at_pool("engine", "sglan"), E, "engine", "did you mean sglang?", "vllm"),
    "vLLM's own address": (at_endpoint("kv_events", "tcp://*:5557"), E, "kv_events", "an engine listens", "{address}"),
    "replay to us": (at_endpoint("kv_replay", "tcp://0.0.0.0:5558"), E, "kv_replay", "an engine listens", "{address}"),
    "unknown role": (at_endpoint("role", "decoder"), E, "smetric.role", "did you mean decode?", "prefill"),
    "no ranks": (at_endpoint("data_parallel_size", 0), E, "data_parallel_size", "is 0", "from 1 to 1,024"),
    "ranks true": (at_endpoint("data_parallel_size", True), E, "data_parallel_size", "true or false", "number"),
    "bad event address": (at_endpoint("kv_replay", "engine:5557"), E, "kv_replay", "'engine:5557'", "tcp://{address}"),
    "bind address": (at_endpoint("kv_replay", "tcp://*:5558"), E, "kv_replay", "an engine listens", "tcp://{address}"),
    "no such port": (at_endpoint("kv_replay", "tcp://a:65536"), E, "kv_replay", "do not all exist", "tcp://{address}"),
    "one address twice": (
        at_endpoint("kv_events", "tcp://engine-1:5557"), E, "load_assignment", "belongs to kv_events", "of its own",
    ),
    "ranks into replay": (
        at_endpoint("data_parallel_size", 2), E, "load_assignment", "kv_replay of engine-0:8000 rank 0", "far enough",
    ),
    "unfilled placeholder": (
        at_endpoint("kv_events", "tcp://{adress}:5557"), E, "kv_events", "did you mean {address}?", "tcp://{address}",
    ),
    "another placeholder": (
        at_endpoint("kv_replay", "tcp://{pod}:5558"), E, "kv_replay", "nobody fills in {pod}", "tcp://{address}",
    ),
    "misspelt namespace": (
        at_engines("metadata.filter_metadata.smetrics", {}), W, "smetrics", "nobody reads", "smetric",
    ),
    "an engine without events": (at_endpoint("kv_events", DELETE), E, "smetric", "engine-0:8000", "source: routed"),
    "an engine without replay": (at_endpoint("kv_replay", DELETE), W, "smetric", "without kv_replay", "{address}"),
    # the filter
    "no pool": (
        lambda yaml: ext_proc(yaml)["grpc_service"]["initial_metadata"].pop(0),
        E, "initial_metadata", "which cluster is the pool", "value: engines",
    ),
    "unknown pool": (metadata("x-smetric-cluster", "engine"), E, "value", "did you mean engines?", "clusters"),
    "unknown policy": (metadata("x-smetric-policy", "smetrik"), E, "value", "did you mean smetric?", "docs/"),
    "unknown option": (metadata("x-smetric-hit-ration", "1"), E, "value", "did you mean x-smetric-hit-ratio?", "docs/"),
    "option not a number": (metadata("x-smetric-overload", "two"), E, "value", "'two'", "docs/"),
    "option negative": (metadata("x-smetric-overload", "-1"), E, "value", "'-1'", "docs/"),
    "option not finite": (metadata("x-smetric-overload", "inf"), E, "value", "'inf'", "docs/"),
    "ratio as percent": (metadata("x-smetric-hit-ratio", "50"), W, "value", "hardly meant", "from 0 to 1"),
    "ratio with a percent sign": (
        metadata("x-smetric-hit-ratio", "80%"), E, "value", "for a command and drops every decision", "write 0.8;",
    ),
    "half a command": (metadata("x-smetric-policy", "%REQ(x"), E, "value", "drops every decision", "%REQ(name)%"),
    "unknown command": (
        metadata("x-smetric-hit-ratio", "%RQE(x)%"), W, "value", "%RQE% is no command", "did you mean REQ?",
    ),
    "a percent sign that is sent": (metadata("x-smetric-overload", "2%%"), E, "value", "'2%'", "docs/"),
    "misspelt field of the filter": (
        at_filter("failure_mode_alow", True), E, "failure_mode_alow", "ExternalProcessor has no", "failure_mode_allow?",
    ),
    "misspelt field within the filter": (
        at_filter("processing_mode.requestBodyMod", "NONE"),
        E, "processing_mode.requestBodyMod", "ProcessingMode has no field", "did you mean request_body_mode?",
    ),
    "misspelt field in a list": (
        at_engines(f"{OVERRIDE_HOST}.override_host_sources[0].metadat", {}),
        E, "override_host_sources[0].metadat", "OverrideHostSource has no field", "did you mean metadata?",
    ),
    "misspelt field of a route's change": (
        per_route(f"{URL}.ExtProcPerRoute", overides={}),
        E, "overides", "ExtProcPerRoute has no field", "did you mean overrides?",
    ),
    "abbreviated type": (
        per_route("...ExtProcPerRoute"), E, "@type\"]", "is no type URL", f"write {URL}.ExtProcPerRoute",
    ),
    "type without a URL": (
        per_route(URL.partition("/")[2] + ".ExtProcPerRoute"), E, "@type\"]", "no type URL", f"{URL}.ExtProcPerRoute",
    ),
    "another type on a route": (
        per_route(f"{URL}.ExternalProcessor"), E, "@type\"]", "Envoy refuses it", f"{URL}.ExtProcPerRoute",
    ),
    "no type on a route": (per_route(None), E, "ext_proc\"]", "@type is missing", f"{URL}.ExtProcPerRoute"),
    "token from the client": (
        metadata("x-smetric-token", "%REQ(x-t)%"), E, "value", "any client can show it", "ENVIRONMENT",
    ),
    "policy from the client": (metadata("x-smetric-policy", "%REQ(x-p)%"), W, "value", "a client", "fixed value"),
    "observability": (at_filter("observability_mode", True), E, "observability_mode", "ignores", "remove"),
    "fails closed": (at_filter("failure_mode_allow", DELETE), W, FILTER, "500 or 504", "failure_mode_allow: true"),
    "headers skipped": (
        at_filter("processing_mode.request_header_mode", "SKIP"), E, "request_header_mode", "ignores", "SEND",
    ),
    "no body": (
        at_filter("processing_mode.request_body_mode", DELETE), W, "processing_mode", "NONE", "BUFFERED",
    ),
    "body streamed": (
        at_filter("processing_mode.request_body_mode", "STREAMED"), W, "request_body_mode", "load alone", "BUFFERED",
    ),
    "body in part": (
        at_filter("processing_mode.request_body_mode", "BUFFERED_PARTIAL"),
        W, "request_body_mode", "cut off", "BUFFERED",
    ),
    "full duplex": (
        all_of(
            at_filter("processing_mode.request_body_mode", "FULL_DUPLEX_STREAMED"),
            at_filter("processing_mode.response_trailer_mode", "SEND"),
        ),
        W, "request_body_mode", "does not fail open", "BUFFERED",
    ),
    "gRPC body": (at_filter("processing_mode.request_body_mode", "GRPC"), E, "body_mode", "gRPC", "BUFFERED"),
    "response headers skipped": (
        at_filter("processing_mode.response_header_mode", "SKIP"), W, "response_header_mode", "prefill", "SEND",
    ),
    "response body": (
        at_filter("processing_mode.response_body_mode", "STREAMED"), W, "response_body_mode", "every token", "NONE",
    ),
    "default message timeout": (
        at_filter("message_timeout", DELETE), W, FILTER, "0.2s (the default)", "message_timeout: 1s",
    ),
    "message timeout too short": (
        at_filter("message_timeout", "0.1s"), W, "message_timeout", "without a decision", "message_timeout: 1s",
    ),
    "message timeout too long": (
        at_filter("message_timeout", "60s"), W, "message_timeout", "hang", "message_timeout: 1s",
    ),
    "no time for a prefill": (
        all_of(metadata("x-smetric-disaggregation", "filter"), at_filter("max_message_timeout", DELETE)),
        E, FILTER, "a prefill may take 121s", "max_message_timeout: 121s",
    ),
    "too little time for a prefill": (
        all_of(metadata("x-smetric-disaggregation", "filter"), metadata("x-smetric-prefill-timeout", "100")),
        E, "max_message_timeout", "max_message_timeout is 121s", "max_message_timeout: 201s",
    ),
    "unknown disaggregation": (
        metadata("x-smetric-disaggregation", "side"), E, "initial_metadata[5].value", "did you mean sidecar?", "docs",
    ),
    "prefill without time": (
        metadata("x-smetric-prefill-timeout", "0"), E, "initial_metadata[5].value", "write seconds", "docs",
    ),
    "prefill for ever": (
        metadata("x-smetric-prefill-timeout", "3600"), E, "initial_metadata[5].value", "up to 1740", "docs",
    ),
    "only one half": (
        at_engines(ENDPOINTS, ONE_PREFILL), W, "endpoints", "every endpoint of engines has role", "role: decode",
    ),
    "a client chooses who prefills": (
        all_of(at_endpoint("role", "prefill"), at_manager("http_filters[0].typed_config.mutations", DELETE)),
        W, "http_filters[1]", "x-prefiller-host-port", "header_mutation",
    ),
    "no metadata options": (
        all_of(at_filter("metadata_options", DELETE), at_filter("response_attributes", ["upstream.address"])),
        E, FILTER, "envoy.lb is not received", "[envoy.lb, smetric]",
    ),
    "destination not received": (
        at_filter("metadata_options.receiving_namespaces.untyped", ["smetric"]),
        E, "untyped", "envoy.lb is not received", "[envoy.lb, smetric]",
    ),
    "explanation not received": (
        at_filter("metadata_options.receiving_namespaces.untyped", ["envoy.lb"]),
        W, "untyped", "access log", "[envoy.lb, smetric]",
    ),
    "served host not forwarded": (
        at_filter("metadata_options.forwarding_namespaces", DELETE), W, FILTER, "which instance", "upstream.address",
    ),
    "served host not kept": (
        at_engines(f"{OVERRIDE_HOST}.selected_host_key", DELETE), W, FILTER, "which instance", "upstream.address",
    ),
    "mutations forbidden": (
        at_filter("mutation_rules", {"disallow_all": True}), W, "mutation_rules", "may not be set", "allow_expression",
    ),
    "mutations forbidden by an expression": (
        at_filter("mutation_rules", {"disallow_expression": {"regex": "x-gateway-.*"}, "disallow_is_error": True}),
        E, "mutation_rules", "500", "allow_expression",
    ),
    "path not allowed": (
        at_filter("forward_rules", {"allowed_headers": {"patterns": [{"prefix": "content-"}]}}),
        W, "forward_rules", "load alone", "allow :path",
    ),
    "path forbidden": (
        at_filter("forward_rules", {"disallowed_headers": {"patterns": [{"safe_regex": {"regex": ":.*"}}]}}),
        W, "forward_rules", "load alone", "allow :path",
    ),
    "no immediate responses": (
        at_filter("disable_immediate_response", True), W, "disable_immediate_response", "503", "remove",
    ),
    "over HTTP": (
        all_of(at_filter("grpc_service.envoy_grpc", DELETE), at_filter("grpc_service.google_grpc", {"target_uri": 5})),
        E, "grpc_service", "Envoy does not accept", "--mode validate",
    ),
    # around the filter
    "buffer limit of the default": (
        lambda yaml: change(listener(yaml), "per_connection_buffer_limit_bytes", DELETE),
        W, "listeners[0]", "1 MiB (the default)", "67108864",
    ),
    "buffer limit too small": (
        lambda yaml: change(listener(yaml), "per_connection_buffer_limit_bytes", 32768),
        W, "per_connection_buffer_limit_bytes", "32,768 bytes", "67108864",
    ),
    "default idle timeout": (
        at_manager("stream_idle_timeout", DELETE), W, HCM, "300s (the default)", "stream_idle_timeout: 3600s",
    ),
    "idle timeout": (
        at_manager("stream_idle_timeout", "30s"), W, "stream_idle_timeout", "cut off", "3600s",
    ),
    "a header that a client can send": (
        all_of(
            at_engines(f"{OVERRIDE_HOST}.override_host_sources", [HEADER]),
            at_manager("http_filters[0].typed_config.mutations.request_mutations", []),
        ),
        W, "http_filters[1]", "a client", "header_mutation",
    ),
    # routes
    "default route timeout": (at_manager(f"{ROUTE}.route.timeout", DELETE), W, "route", "15s (the default)", "0s"),
    "short route timeout": (at_manager(f"{ROUTE}.route.timeout", "60s"), W, "timeout", "60s", "timeout: 0s"),
    "short idle timeout": (at_manager(f"{ROUTE}.route.idle_timeout", "60s"), W, "idle_timeout", "60s", "3600s"),
    "no retries": (at_manager(f"{ROUTE}.route.retry_policy", DELETE), W, "route", "no retry_policy", "num_retries: 2"),
    "retries of connections only": (
        at_manager(f"{ROUTE}.route.retry_policy.retry_on", "connect-failure,refused-stream"),
        W, "retry_on", "an instance that dies", "reset",
    ),
    "retries of neither": (
        at_manager(f"{ROUTE}.route.retry_policy.retry_on", "refused-stream"),
        W, "retry_on", "an instance that is down or one that dies", "reset",
    ),
    "fewer retries than fallbacks": (
        at_manager(f"{ROUTE}.route.retry_policy.num_retries", DELETE), W, "retry_policy", "is 1", "num_retries: 2",
    ),
    "timeout of a try": (
        at_manager(f"{ROUTE}.route.retry_policy.per_try_timeout", "30s"), W, "per_try_timeout", "doubles", "remove",
    ),
    "another cluster": (
        at_manager(f"{ROUTE}.route.cluster", "extproc"), W, "routes[0].route", "goes to extproc", "cluster: engines",
    ),
    # Nothing else is said of it, such as of its timeout and its retries: they are not ours.
    "another service beside": (
        another_service, W, "routes[0].route", "engines counts a load that it does not have", "disabled: true",
    ),
    "no time for a reply": (
        at_manager("common_http_protocol_options.max_stream_duration", "60s"),
        W, "max_stream_duration", "takes longer is cut off", "remove",
    ),
    "no time for a reply on a route": (
        at_manager(f"{ROUTE}.route.max_stream_duration.max_stream_duration", "60s"),
        W, "max_stream_duration", "takes longer than 60s is cut off", "0s",
    ),
    "no time for a reply in the pool": (
        short_streams("engines"),
        W, "max_stream_duration", "engines: max_stream_duration is 60s", "remove",
    ),
    "no time for a stream of ours": (
        short_streams("extproc"), W, "max_stream_duration", "is not counted", "remove",
    ),
    "underscores refused": (
        at_manager("common_http_protocol_options.headers_with_underscores_action", "REJECT_REQUEST"),
        W, "headers_with_underscores_action", "closed connection instead of 400", "ALLOW, or DROP_HEADER",
    ),
    "decompressed too late": (
        decompressor(2), W, "http_filters[2]", "decompressed after we see them", "before ext_proc",
    ),
    "two filters": (second_filter, W, "http_filters[2]", "decided and counted twice", "remove one"),
    "a WebSocket that waits": (
        all_of(
            at_filter("allow_mode_override", DELETE),
            at_manager("upgrade_configs", [{"upgrade_type": "websocket"}]),
        ),
        W, "request_body_mode", "a body that never ends", "allow_mode_override: true",
    ),
    "a WebSocket of one route": (
        all_of(
            at_filter("allow_mode_override", DELETE),
            at_manager(f"{ROUTE}.route.upgrade_configs", [{"upgrade_type": "websocket"}]),
        ),
        W, "request_body_mode", "a body that never ends", "allow_mode_override: true",
    ),
    "an API that only the rewrite names": (
        all_of(at_manager(f"{ROUTE}.match", {"prefix": "/a/"}), at_manager(f"{ROUTE}.route.prefix_rewrite", "/v1/")),
        W, "prefix_rewrite", "cannot tell the API of /a/completions (as /v1/completions), /a/messages", "end as",
    ),
    "a path that says nothing": (
        all_of(
            at_manager(f"{ROUTE}.match", {"path": "/ask"}),
            at_manager(f"{ROUTE}.route.prefix_rewrite", "/v1/chat/completions"),
        ),
        W, "prefix_rewrite", "/ask (as /v1/chat/completions)", "before ext_proc",
    ),
    "an expression that hides the API": (
        all_of(
            at_manager(f"{ROUTE}.match", {"safe_regex": {"regex": "^/(?:a|b)/[^/]+/.*$"}}),
            at_manager(f"{ROUTE}.route.regex_rewrite", regex("^/[ab]/[^/]+/(.*)$", "/v1/\\1")),
        ),
        W, "regex_rewrite", "/a/name/completions (as /v1/completions)", "end as",
    ),
    "a template that hides the API": (
        all_of(
            at_manager(f"{ROUTE}.match", template("path_match_policy", "match", path_template="/{m}/{x=**}")),
            at_manager(
                f"{ROUTE}.route.path_rewrite_policy",
                template("path_rewrite_policy", "rewrite", path_template_rewrite="/v1/{x}")["path_rewrite_policy"],
            ),
        ),
        W, "path_rewrite_policy", "/name/completions (as /v1/completions)", "end as",
    ),
    "a rewrite that the request decides": (
        at_manager(f"{ROUTE}.route.path_rewrite", "/v1/%REQ(x-api)%"), W, "path_rewrite", "cannot be said", "end as",
    ),
    "a rewrite that does not compile": (
        at_manager(f"{ROUTE}.route.regex_rewrite", regex("(", "x")), W, "regex_rewrite", "cannot be said", "end as",
    ),
    "routes elsewhere": (
        at_manager("rds", {"route_config_name": "r"}), W, "rds", "are not seen", "route_config",
    ),
    # clusters
    "empty pool": (at_engines("load_assignment.endpoints", []), E, "endpoints", "no endpoint", "lb_endpoints"),
    "only unhealthy": (
        all_of(*(at_engines(f"{ENDPOINTS}[{n}].health_status", "DRAINING") for n in range(4))),
        E, "endpoints", "no endpoint", "lb_endpoints",
    ),
    "endpoint without a port": (
        at_engines("load_assignment.endpoints[0].lb_endpoints[0].endpoint.address", {"pipe": {"path": "/x"}}),
        E, "lb_endpoints[0].endpoint.address", "an address and a port", "port_value",
    ),
    "a name in a static cluster": (at_engines("type", "STATIC"), E, "type", "engine-0 is a name", "STRICT_DNS"),
    "a weight": (
        at_engines(f"{ENDPOINTS}[0].load_balancing_weight", 3),
        W, "load_balancing_weight", "is not used", "priorities are obeyed",
    ),
    "a zone's weight": (
        at_engines("load_assignment.endpoints[0].load_balancing_weight", 3),
        W, "load_balancing_weight", "is not used", "priorities are obeyed",
    ),
    "weights of zones": (
        at_engines("common_lb_config", {"locality_weighted_lb_config": {}}),
        W, "locality_weighted_lb_config", "is not used", "priorities are obeyed",
    ),
    "logical DNS": (at_engines("type", "LOGICAL_DNS"), E, "type", "a single host", "STRICT_DNS"),
    "original destination": (at_engines("type", "ORIGINAL_DST"), E, "type", "no endpoints", "STRICT_DNS"),
    "xDS endpoints": (
        all_of(at_engines("type", "EDS"), at_engines("eds_cluster_config", {"eds_config": {"ads": {}}})),
        E, "eds_config", "xDS", "path_config_source",
    ),
    "cluster of an extension": (
        all_of(at_engines("type", DELETE), at_engines("cluster_type", {"name": "envoy.clusters.redis"})),
        E, "cluster_type", "cannot follow", "STRICT_DNS",
    ),
    "cluster of a type of tomorrow": (at_engines("type", 99), E, "type", "cannot follow", "STRICT_DNS"),
    "another load balancer": (
        at_engines("load_balancing_policy", DELETE), E, "clusters[0]", "does not use override_host", "envoy.lb",
    ),
    "destination looked for elsewhere": (
        at_engines(f"{OVERRIDE_HOST}.override_host_sources[0].metadata.key", "envoy.lb.other"),
        E, "override_host_sources", "looks elsewhere", "envoy.lb",
    ),
    "two sources": (
        at_engines(f"{OVERRIDE_HOST}.override_host_sources", [SOURCE, HEADER]),
        W, "override_host_sources", "hosts of both", "metadata source alone",
    ),
    "default limits of the pool": (
        at_engines("circuit_breakers.thresholds", [{"max_retries": 100000}]),
        W, "thresholds[0]", "max_connections, max_pending_requests, max_requests", "max_requests: 100000",
    ),
    "default retries at a time": (
        at_engines("circuit_breakers.thresholds[0].max_retries", DELETE),
        W, "thresholds[0]", "at most 3 retries", "max_retries: 100000",
    ),
    "default limits of ext_proc": (
        at_extproc("circuit_breakers", DELETE), W, "clusters[1]", "without a decision", "max_requests: 100000",
    ),
    "low limit of ext_proc": (
        at_extproc("circuit_breakers.thresholds[0].max_requests", 64),
        W, "thresholds[0]", "max_requests of at most 64", "max_requests: 100000",
    ),
    "no cluster of ext_proc": (
        at_filter("grpc_service.envoy_grpc.cluster_name", "extprocs"),
        E, "cluster_name", "did you mean extproc?", "the ext_proc server",
    ),
    "ext_proc over HTTP/1": (
        at_extproc(f"{UPSTREAM}", DELETE), E, "clusters[1]", "gRPC needs HTTP/2", "http2_protocol_options",
    ),
    "health of ext_proc by TLS": (
        at_extproc("transport_socket", {"name": "envoy.transport_sockets.tls"}),
        W, "port_value", "it never counts as healthy", "remove health_check_config",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAPS)
def test_each_trap_is_reported_alone_at_its_place_with_its_remedy(name: str, tmp_path: Path) -> None:
    """One mistake gives one problem: its severity, its place in the YAML, what it does and what to write instead."""
    trap, severity, path, message, advice = TRAPS[name]
    yaml = clean()
    trap(yaml)
    report = inspect(yaml, tmp_path)
    problems = {path_of(problem): problem for problem in report.problems}
    assert len(report.problems) >= 1, "nothing was reported"
    fitting = [problem for where, problem in problems.items() if where.endswith(path) and message in problem.message]
    assert len(fitting) == 1, report.render()
    assert fitting[0].severity is severity
    assert advice in fitting[0].advice
    assert len(report.problems) == 1, report.render()
    assert (report.settings is None) == (severity is E)


@pytest.mark.parametrize(
    ("match", "rewrite"),
    [
        ({"prefix": "/team-a/"}, {"prefix_rewrite": "/"}),
        ({"prefix": "/team-a"}, {"prefix_rewrite": "/"}),
        ({"prefix": "/"}, {"prefix_rewrite": ""}),
        ({"path_separated_prefix": "/team-a/v1"}, {"prefix_rewrite": "/v1"}),
        ({"prefix": "/openai/"}, {"regex_rewrite": regex("^/openai/deployments/[^/]+/(.*)$", "/v1/\\1")}),
        ({"prefix": "/"}, {"regex_rewrite": regex("^/ns/[^/]+/[^/]+(/v1/.*)$", "\\1")}),
        ({"safe_regex": {"regex": "/(a|b)/.*"}}, {"regex_rewrite": regex("^/(a|b)", "")}),
        (
            template("path_match_policy", "match", path_template="/of/{model}/v1/{rest=**}"),
            template("path_rewrite_policy", "rewrite", path_template_rewrite="/v1/{rest}"),
        ),
    ],
    ids=str,
)
def test_a_rewrite_that_hides_nothing_is_no_trap(match: Yaml, rewrite: Yaml, tmp_path: Path) -> None:
    """Where clients' paths end as the engine's do, the API is told, however the route rewrites them."""
    yaml = clean()
    change(manager(yaml), f"{ROUTE}.match", match)
    for key, value in rewrite.items():
        change(manager(yaml), f"{ROUTE}.route.{key}", value)
    assert not inspect(yaml, tmp_path).problems


DUPLEX = "FULL_DUPLEX_STREAMED"


@pytest.mark.parametrize(
    ("modes", "allowed", "early"),
    [
        ({"request_body_mode": DUPLEX}, True, True),  # Envoy takes no override there
        ({"request_body_mode": DUPLEX, "response_trailer_mode": "SEND"}, True, False),
        ({"request_body_mode": DUPLEX, "response_body_mode": "STREAMED"}, True, False),
        ({"request_body_mode": "NONE"}, True, False),  # we ask for the response's end
        ({"request_body_mode": "NONE"}, False, True),
        ({"request_body_mode": "NONE", "response_trailer_mode": "SEND"}, False, False),
        ({"request_body_mode": "BUFFERED"}, False, False),
        ({"request_body_mode": "STREAMED"}, False, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("on_route", [False, True])
def test_what_lets_envoy_close_early(modes: Yaml, allowed: bool, early: bool, on_route: bool, tmp_path: Path) -> None:
    """As a real Envoy does it (tests/epp/test_envoy_loads.py), in the filter's mode and in a route's own."""
    yaml = clean()
    ext_proc(yaml)["allow_mode_override"] = allowed
    if on_route:
        per_route(f"{URL}.ExtProcPerRoute", overrides={"processing_mode": modes})(yaml)
    else:
        ext_proc(yaml)["processing_mode"] |= {"response_trailer_mode": "SKIP"} | modes
    said = [problem for problem in inspect(yaml, tmp_path).problems if "closes the stream" in problem.message]
    assert [problem.advice for problem in said] == ["write response_trailer_mode: SEND"] * early


@pytest.mark.parametrize(("mode", "twice"), [("BUFFERED", False), (DUPLEX, True)])
def test_what_makes_envoy_send_a_body_twice(mode: str, twice: bool, tmp_path: Path) -> None:
    """A decompressor before ours ends bodies with trailers, and where Envoy may retry it then repeats what it kept."""
    yaml = clean()
    decompressor(0)(yaml)
    ext_proc(yaml)["processing_mode"]["request_body_mode"] = mode
    problems = inspect(yaml, tmp_path).problems
    assert ["decompressed twice" in problem.message for problem in problems].count(True) == twice
    change(
        manager(yaml),
        "http_filters[0].typed_config.request_direction_config.common_config.enabled.default_value",
        False,
    )
    assert not any("decompressed" in problem.message for problem in inspect(yaml, tmp_path).problems)


@pytest.mark.parametrize("token", ["secret", "%ENVIRONMENT(SMETRIC_TOKEN)%"])
def test_a_token_is_no_setting(token: str, tmp_path: Path) -> None:
    """It is known, and no policy asks for it; Envoy may have it from its environment."""
    yaml = clean()
    metadata("x-smetric-token", token)(yaml)
    report = inspect(yaml, tmp_path)
    assert not report.problems
    assert "secret" not in report.render()


def test_a_place_is_a_line_that_an_editor_can_jump_to(tmp_path: Path) -> None:
    """The line in a place is the one of the wrong key, in a file that was written by hand."""
    lines = Path("envoy/envoy.yaml").read_text("utf-8").replace("source: events", "source: event").splitlines()
    path = tmp_path / "hand.yaml"
    path.write_text(
        "\n".join(lines).replace("../loadgen/engine/model", str(Path("loadgen/engine/model").resolve())), "utf-8"
    )
    (problem,) = config.inspect(path).problems
    line = int(problem.place.removeprefix(f"{path}:").split()[0])
    assert lines[line - 1].strip() == "source: event"
