"""Settings from Envoy YAML: what is found, wherever and however it is written; and that nothing in a file can hurt."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc import config
from extproc.base.errors import ConfigError
from extproc.base.model import Engine, Role, Source
from extproc.config import Discovery, DnsFamily, Endpoint, Report
from extproc.config.nodes import Malformed, parse
from extproc.routing.policies import registry
from extproc.routing.route import RouteSettings, route_settings
from tests.support.envoy_yaml import DELETE, ROOT, SHIPPED, Yaml, change, clean, cluster, ext_proc, inspect, manager

PER_ROUTE = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"


def read(yaml: Yaml, directory: Path) -> config.Settings:
    """Its settings; there must be no errors."""
    report = inspect(yaml, directory)
    assert report.settings is not None, report.render()
    return report.settings


def override(**metadata: str) -> dict[str, Any]:
    """A typed_per_filter_config that lays this over the filter's metadata."""
    entries = [{"key": key.replace("_", "-"), "value": value} for key, value in metadata.items()]
    return {"envoy.filters.http.ext_proc": {"@type": PER_ROUTE, "overrides": {"grpc_initial_metadata": entries}}}


def camel(tree: Any) -> Any:
    """The tree with camelCase keys, but for what is no field of Envoy's: extension names and our own metadata."""
    if isinstance(tree, list):
        return [camel(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    changed = {}
    for key, value in tree.items():
        head, *tail = key.split("_")
        name = key if "." in key else head + "".join(word.capitalize() for word in tail)
        changed[name] = value if key == "filter_metadata" else camel(value)
    return changed


# What is found


def test_the_shipped_configuration_means_what_its_comments_say() -> None:
    """Pool, endpoints, model and policy of envoy/envoy.yaml."""
    found = config.load(ROOT / "envoy" / "envoy.yaml")
    pool = found.pools["engines"]
    assert found.default == RouteSettings(
        "engines", "smetric", {"overload": 2.0, "overload_floor": 1.0, "hit_ratio": 0.5}
    )
    assert (pool.discovery, pool.dns_family, pool.dns_refresh_s) == (Discovery.STRICT_DNS, DnsFamily.V4_ONLY, 5.0)
    assert (pool.source, pool.prompt_block_bytes, pool.models) == (Source.EVENTS, 256, frozenset())
    assert pool.model_dir == (ROOT / "loadgen" / "engine" / "model").resolve()
    events, replay = "tcp://{address}:5557", "tcp://{address}:5558"
    assert pool.endpoints == tuple(Endpoint(f"engine-{n}", 8000, events, replay, Role.BOTH, 1) for n in range(4))


def test_camel_case_and_json_are_read_as_envoy_reads_them(tmp_path: Path) -> None:
    """Envoy takes keys in either case and JSON for YAML; so do we."""
    path = tmp_path / "envoy.json"
    text = config.load(ROOT / "envoy" / "envoy.yaml")

    def camel(tree: Any) -> Any:
        if isinstance(tree, dict):
            # What is below filter_metadata are our own keys; types and extension names are no field names.
            return {
                _camel(k) if k != "model_dir" else k: v if k == "filter_metadata" else camel(v) for k, v in tree.items()
            }
        return [camel(item) for item in tree] if isinstance(tree, list) else tree

    def _camel(key: str) -> str:
        head, *tail = key.split("_")
        return key if "." in key else head + "".join(word.capitalize() for word in tail)

    path.write_text(json.dumps(camel(clean()), indent=1), "utf-8")
    found = config.load(path)
    assert (found.pools, found.default) == (text.pools, text.default)


def test_metadata_is_read_from_cluster_and_endpoint(tmp_path: Path) -> None:
    """Every key of the contract has its effect."""
    yaml = clean()
    smetric = cluster(yaml, "engines")["metadata"]["filter_metadata"]["smetric"]
    smetric |= {"models": ["llama", "llama-fp8"], "prompt_block_bytes": 512, "source": "routed"}
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


def test_a_filter_within_a_matcher_is_found(tmp_path: Path) -> None:
    """ext_proc may stand inside ExtensionWithMatcher and composite filters."""
    yaml = clean()
    (entry,) = (f for f in manager(yaml)["http_filters"] if f["name"].endswith("ext_proc"))
    url = "type.googleapis.com/envoy.extensions.common.matching.v3.ExtensionWithMatcher"
    inner = {"name": "inner", "typed_config": entry["typed_config"]}
    entry["typed_config"] = {"@type": url, "extension_config": inner, "xds_matcher": {"on_no_match": {}}}
    report = inspect(yaml, tmp_path)
    assert report.problems == ()
    assert report.settings
    assert report.settings.default


def test_another_ext_proc_filter_is_none_of_our_business(tmp_path: Path) -> None:
    """A filter that names nothing of ours is neither read nor judged."""
    yaml = clean()
    url = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"
    typed = {"@type": url, "grpc_service": {"envoy_grpc": {"cluster_name": "guard"}}}
    manager(yaml)["http_filters"].insert(0, {"name": "guard", "typed_config": typed})
    assert inspect(yaml, tmp_path).problems == ()


def test_what_we_do_not_know_is_left_alone(tmp_path: Path) -> None:
    """Unknown filters, clusters, types and fields of a newer Envoy are no mistakes."""
    yaml = clean()
    yaml["a_field_of_tomorrow"] = {"x": [1, {"y": None}]}
    yaml["static_resources"]["secrets"] = [{"name": "s", "tls_certificate": {}}]
    yaml["static_resources"]["clusters"].append({"name": "other", "type": "LOGICAL_DNS", "field_of_tomorrow": 1})
    cluster(yaml, "engines")["field_of_tomorrow"] = 1
    manager(yaml)["http_filters"].insert(0, {"name": "x", "typed_config": {"@type": "type.googleapis.com/x.Y", "z": 1}})
    assert inspect(yaml, tmp_path).problems == ()


def test_a_field_of_tomorrow_in_our_filter_is_read_over_with_a_warning(tmp_path: Path) -> None:
    """Our types may be older than Envoy: what resembles nothing that they know stops nobody."""
    yaml = clean()
    change(ext_proc(yaml), "field_of_tomorrow", {"deep": [1]})
    report = inspect(yaml, tmp_path)
    assert [problem.severity for problem in report.problems] == [config.Severity.WARNING]
    assert report.settings is not None


def test_a_percent_sign_is_doubled_and_a_command_is_whole(tmp_path: Path) -> None:
    """As Envoy's formatter reads them: what it fills in is not judged, and what it sends as it stands is."""
    for value in ("%REQ(x)%", "%REQ(x?y):12%", "%START_TIME(%s)%", "%HOSTNAME%", "1%%%REQ(x)%"):
        yaml = clean()
        ext_proc(yaml)["grpc_service"]["initial_metadata"].append({"key": "x-smetric-max-load", "value": value})
        assert inspect(yaml, tmp_path).problems == (), value
    for value in ("50%", "%REQ(x", "%req(x)%", "%REQ(x)% %", "%"):
        yaml = clean()
        ext_proc(yaml)["grpc_service"]["initial_metadata"].append({"key": "x-other", "value": value})
        (problem,) = inspect(yaml, tmp_path).problems
        assert problem.message == f"x-other is {value!r}: Envoy takes % for a command and drops every decision"


def test_known_keys_and_words_are_listed_once(tmp_path: Path) -> None:
    """Where nothing known resembles what is written, the message does not repeat what the advice lists."""
    for key, value in (("zzz", 1), ("source", "zzz")):
        yaml = clean()
        change(cluster(yaml, "engines"), f"metadata.filter_metadata.smetric.{key}", value)
        text = inspect(yaml, tmp_path).render()
        assert text.count("model_dir, models" if key == "zzz" else "events, routed") == 1, text
        assert "known are" not in text


def test_where_each_route_waits_as_long_as_it_says_the_default_does_not_matter(tmp_path: Path) -> None:
    """A route's idle_timeout takes the place of stream_idle_timeout."""
    yaml = clean()
    change(manager(yaml), "stream_idle_timeout", DELETE)
    assert "stream_idle_timeout is 300s (the default)" in inspect(yaml, tmp_path).render()
    manager(yaml)["route_config"]["virtual_hosts"][0]["routes"][0]["route"]["idle_timeout"] = "0s"
    assert inspect(yaml, tmp_path).problems == ()


# Routes


def test_routes_lay_their_settings_over_the_filters(tmp_path: Path) -> None:
    """Virtual host, route and weighted cluster, the most specific last, wrapped in a FilterConfig or not."""
    yaml = clean()
    host = manager(yaml)["route_config"]["virtual_hosts"][0]
    host["typed_per_filter_config"] = override(x_smetric_overload="7", x_smetric_hit_ratio="0.1")
    plain = host["routes"][0]
    wrapped = clean()["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    wrapped = wrapped["route_config"]["virtual_hosts"][0]["routes"][0]
    wrapped |= {"name": "wrapped", "match": {"prefix": "/a"}}
    inner = override(x_smetric_policy="round-robin")["envoy.filters.http.ext_proc"]
    url = "type.googleapis.com/envoy.config.route.v3.FilterConfig"
    wrapped["typed_per_filter_config"] = {"envoy.filters.http.ext_proc": {"@type": url, "config": inner}}
    weighted = {"name": "weighted", "match": {"prefix": "/b"}, "route": dict(plain["route"])}
    del weighted["route"]["cluster"]
    entry = {"name": "engines", "weight": 1, "typed_per_filter_config": override(x_smetric_hit_ratio="0.9")}
    weighted["route"]["weighted_clusters"] = {"clusters": [entry]}
    disabled = {"name": "off", "match": {"prefix": "/c"}, "route": {"cluster": "extproc"}}
    disabled["typed_per_filter_config"] = {"envoy.filters.http.ext_proc": {"@type": PER_ROUTE, "disabled": True}}
    moved = {"name": "moved", "match": {"path": "/d"}, "redirect": {"path_redirect": "/"}}
    host["routes"] = [wrapped, weighted, disabled, moved, plain]
    report = inspect(yaml, tmp_path)
    assert report.problems == (), report.render()
    floor = {"overload_floor": 1.0}
    assert dict(report.routes) == {
        "agents/wrapped": RouteSettings("engines", "round-robin", {}),
        "agents/weighted": RouteSettings("engines", "smetric", {"overload": 7.0, "hit_ratio": 0.9} | floor),
        "agents, prefix /": RouteSettings("engines", "smetric", {"overload": 7.0, "hit_ratio": 0.1} | floor),
    }


def test_a_pool_may_be_named_by_routes_alone(tmp_path: Path) -> None:
    """Then there is no default, and a stream without the route's metadata has no pool."""
    yaml = clean()
    ext_proc(yaml)["grpc_service"]["initial_metadata"] = []
    manager(yaml)["route_config"]["virtual_hosts"][0]["routes"][0]["typed_per_filter_config"] = override(
        x_smetric_cluster="engines"
    )
    found = read(yaml, tmp_path)
    assert found.default is None
    assert list(found.pools) == ["engines"]
    with pytest.raises(ConfigError, match="x-smetric-cluster"):
        route_settings({}, found.default)


DEFAULT = RouteSettings("engines", "smetric", {"overload": 3.0, "overload_floor": 0.0, "hit_ratio": 0.25})


def test_a_stream_without_metadata_uses_the_default() -> None:
    """Entries of other filters do not count."""
    assert route_settings({"user-agent": "grpc", "x-other": "1"}, DEFAULT) == DEFAULT


def test_a_stream_changes_what_it_names_and_no_more() -> None:
    """One option alone; the default's other options stay."""
    changed = route_settings({"x-smetric-hit-ratio": "0.75"}, DEFAULT)
    assert changed == RouteSettings("engines", "smetric", {"overload": 3.0, "overload_floor": 0.0, "hit_ratio": 0.75})


def test_another_policy_has_its_own_options() -> None:
    """Envoy still sends the filter's options beside a route's policy: they are left out, not refused."""
    changed = route_settings({"x-smetric-policy": "round-robin", "x-smetric-hit-ratio": "0.5"}, DEFAULT)
    assert changed == RouteSettings("engines", "round-robin", {})


@pytest.mark.parametrize("policy", registry.names())
def test_every_policy_is_known_with_all_its_options(policy: str) -> None:
    """A new file among the policies needs no change here."""
    options = registry.options(policy)
    metadata = {f"x-smetric-{name.replace('_', '-')}": str(value + 1) for name, value in options.items()}
    found = route_settings(metadata | {"x-smetric-policy": policy}, DEFAULT)
    assert found.options == {name: value + 1 for name, value in options.items()}


@pytest.mark.parametrize(
    "metadata",
    [
        {"x-smetric-policy": "smetrik"},
        {"x-smetric-hits": "1"},
        {"x-smetric-hit-ratio": ""},
        {"x-smetric-hit-ratio": "nan"},
        {"x-smetric-overload": "-inf"},
        {"x-smetric-overload": "1e999"},
        {"x-smetric-policy": "x" * 100_000},
        {"x-smetric-" + "y" * 100_000: "1"},
    ],
)
def test_what_cannot_be_used_is_refused_in_few_words(metadata: dict[str, str]) -> None:
    """A value may come from a client's header: whatever it is costs a short message and nothing else."""
    with pytest.raises(ConfigError) as refused:
        route_settings(metadata, DEFAULT)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "-1"])
@pytest.mark.parametrize("policy", registry.names())
def test_no_option_of_any_policy_takes_what_it_cannot_compute_with(policy: str, value: str) -> None:
    """An infinite weight times nothing is no number, and no instance could be chosen: each option is finite, from 0."""
    for option in registry.options(policy):
        with pytest.raises(ConfigError, match="write a number of 0 or more"):
            route_settings({"x-smetric-policy": policy, f"x-smetric-{option.replace('_', '-')}": value}, DEFAULT)


# Instances


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


# Reports


def test_a_report_puts_errors_first_and_says_what_it_means(tmp_path: Path) -> None:
    """Severity, place, remedy; a summary in the last line."""
    yaml = clean()
    change(ext_proc(yaml), "message_timeout", DELETE)
    change(cluster(yaml, "engines"), "metadata.filter_metadata.smetric.source", "event")
    change(cluster(yaml, "engines"), "metadata.filter_metadata.smetric.models", 5)
    text = inspect(yaml, tmp_path).render()
    assert text.startswith(f"error: {tmp_path}/envoy.yaml:")
    assert text.index("did you mean events?") < text.index("-> write one of events, routed") < text.index("warning: ")
    errors = re.findall(r"^error: \S+:(\d+) ", text, re.MULTILINE)
    assert errors == sorted(errors, key=int)
    assert text.splitlines()[-1].endswith("2 errors, 1 warning. The server does not start with errors.")
    with pytest.raises(ConfigError, match="did you mean events"):
        config.load(tmp_path / "envoy.yaml")


def test_a_report_of_a_good_file_explains_it() -> None:
    """Pools, instances, routes, in words."""
    text = config.inspect(ROOT / "envoy" / "envoy.yaml").render()
    for words in (
        "pool engines: endpoints by DNS",
        "engine-3:8000",
        "by smetric (overload 2",
        "envoy.yaml is ready for ext_proc; ",
    ):
        assert words in text


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    """The command line tells it from a bad file by its exit status."""
    with pytest.raises(OSError, match="nothing"):
        config.inspect(tmp_path / "nothing.yaml")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"a: [",
        b"a: \x00",
        b"&a [*a]",
        b"[" * 100_000,
        b"\n".join(b" " * n + b"a:" for n in range(900)),
        b"a0: &a0 [1, 1]\n" + b"\n".join(b"a%d: &a%d [*a%d, *a%d]" % (n, n, n - 1, n - 1) for n in range(1, 60)),
        b"just text",
        b"- a\n- list",
        b"!!python/object/apply:os.system [exit]",
        b"static_resources: 5",
        b"static_resources: {clusters: 5, listeners: {}}",
        b"static_resources: {clusters: [null, 5, {name: null}], listeners: [[], {}]}",
        b"{? [a, b] : c, static_resources: }",
    ],
    ids=lambda content: content[:20].decode("latin1"),
)
def test_a_file_that_is_no_configuration_is_reported(content: bytes, tmp_path: Path) -> None:
    """Whatever is in it: an error with a place, and no exception."""
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    report = config.inspect(path)
    assert report.settings is None
    assert report.problems[0].place.startswith(str(path))
    assert report.render()


_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8))
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def _places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    steps = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for step, value in steps:
        found += _places(value, (*path, step))
    return found


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False), st.lists(_VALUES, min_size=1, max_size=3))
def test_no_value_anywhere_makes_reading_fail(
    tmp_path_factory: pytest.TempPathFactory, rng: random.Random, values: list[Any]
) -> None:
    """Any values put anywhere into a shipped configuration give a report that can be printed."""
    yaml = clean(rng.choice(SHIPPED))
    for value in values:
        *parents, last = rng.choice(_places(yaml))
        tree = yaml
        for step in parents:
            tree = tree[step]
        tree[last] = value
    report: Report = inspect(yaml, tmp_path_factory.getbasetemp())
    assert report.render()
    assert (report.settings is None) == any(p.severity is config.Severity.ERROR for p in report.problems)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5), ("-7", -7), ("0x10", 16), ("007", 7), ("0.5", 0.5), (".5", 0.5), ("1e3", 1000.0),
        ("99999999999999999999", 1e20), ("1:30", "1:30"), ("2020-01-01", "2020-01-01"), ("1_000", "1_000"),
        ("yes", True), ("Off", False), ("~", None), ("null", None), ("", None), ("'5'", "5"), ("'yes'", "yes"),
        ("text", "text"), ("0xzz", "0xzz"), ("!!str 5", 5),
    ],
)  # fmt: skip
def test_plain_scalars_are_read_by_yaml_cpps_rules(text: str, value: object) -> None:
    """No YAML 1.1 surprises (sexagesimal, dates), but its booleans, which Envoy shares."""
    node = parse(f"a: {text}", "x").get("a")
    assert node is not None
    assert node.plain() == value
    assert type(node.plain()) is type(value)


def test_malformed_yaml_names_its_line() -> None:
    """An operator looks there first."""
    with pytest.raises(Malformed) as refused:
        parse("a: 1\nb: [1, 2\nc: 3\n", "x")
    assert refused.value.line == 3


def test_shadow_policies_come_with_their_options() -> None:
    """A list of names; each takes its own options from the same keys, the others' are left out."""
    metadata = {"x-smetric-shadow": "bailian, least-loaded", "x-smetric-weight": "0.9"}
    found = route_settings(metadata, DEFAULT)
    assert found.shadows == {"bailian": {"weight": 0.9}, "least-loaded": {}}
    assert route_settings({}, found).shadows == found.shadows
    with pytest.raises(ConfigError, match="unknown policy 'bailan': did you mean bailian"):
        route_settings({"x-smetric-shadow": "bailan"}, DEFAULT)
