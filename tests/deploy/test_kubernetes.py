"""The manifests: they load, agree with each other and with our own command line, and what they configure is served."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc import config
from extproc.base.headers import DESTINATION, EXPLANATION, PREFILLER, RANK
from extproc.base.model import Instance
from extproc.cli import command_line
from extproc.config import Settings
from extproc.instances.discovery import Address, Discovery
from extproc.processor.grpc_health import LIVENESS, READINESS
from loadgen.engine.options import MODEL_DIR
from loadgen.stack.stack import Stack
from tests.epp.envoy_tls import reach_by_tls
from tests.support.agents import chat, decision, post
from tests.support.paths import ROOT

DIRECTORY = ROOT / "envoy" / "kubernetes"
FILES = sorted(DIRECTORY.glob("*.yaml"))
KINDS = {
    ("v1", "ServiceAccount"),
    ("v1", "ConfigMap"),
    ("v1", "Service"),
    ("apps/v1", "Deployment"),
    ("inference.networking.k8s.io/v1", "InferencePool"),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"),
    ("networking.istio.io/v1", "DestinationRule"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("gateway.envoyproxy.io/v1alpha1", "EnvoyExtensionPolicy"),
    ("gateway.envoyproxy.io/v1alpha1", "BackendTrafficPolicy"),
    ("gateway.envoyproxy.io/v1alpha1", "ClientTrafficPolicy"),
}

Object = dict[str, Any]


def objects(*names: str) -> list[Object]:
    """Every object in these files."""
    return [item for name in names for item in yaml.safe_load_all((DIRECTORY / name).read_text("utf-8"))]


def one(kind: str, name: str | None = None) -> Object:
    """The object of a kind, in all files."""
    found = [item for item in objects(*(path.name for path in FILES)) if item["kind"] == kind]
    (item,) = (item for item in found if name is None or item["metadata"]["name"] == name)
    return item


def container(deployment: str) -> Object:
    pod: Object = one("Deployment", deployment)["spec"]["template"]["spec"]
    (only,) = pod["containers"]
    return only | {"pod": pod}


def ports(of: Object) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in of["ports"]}


def service_ports(name: str) -> dict[int, int]:
    """Port of a Service -> port of its pods' container."""
    service = one("Service", name)
    deployment = {"smetric-extproc": "smetric-extproc", "vllm-pods": "vllm"}[name]
    named = ports(container(deployment))
    return {port["port"]: named[port["targetPort"]] for port in service["spec"]["ports"]}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_object_is_of_a_known_kind(path: Path) -> None:
    """Each document has a kind, a version that serves it, and a name."""
    for item in objects(path.name):
        assert (item["apiVersion"], item["kind"]) in KINDS
        assert item["metadata"]["name"]


def test_the_routers_arguments_are_our_own() -> None:
    """The container's arguments parse, and say the ports that the container, the probes and the Service name."""
    extproc = container("smetric-extproc")
    options = command_line.parse(extproc["args"])
    assert options.tls_self_signed
    named = ports(extproc)
    assert named == {
        "ext-proc": options.listen.port,
        "health": options.health.port,
        "metrics": options.metrics.port,
    }
    assert {options.listen.host, options.health.host, options.metrics.host} == {"0.0.0.0"}
    probes = {name: extproc[f"{name}Probe"]["grpc"] for name in ("readiness", "liveness")}
    assert {probe["port"] for probe in probes.values()} == {options.health.port}
    assert probes["readiness"]["service"] in READINESS
    assert probes["liveness"]["service"] == LIVENESS
    assert service_ports("smetric-extproc") == {9002: options.listen.port, 9090: options.metrics.port}
    assert extproc["pod"]["terminationGracePeriodSeconds"] > options.drain_timeout


def test_what_is_mounted_is_what_is_read() -> None:
    """The file that the arguments name is a key of the ConfigMap that is mounted there, and so is the model."""
    extproc = container("smetric-extproc")
    mounts = {mount["name"]: Path(mount["mountPath"]) for mount in extproc["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in extproc["pod"]["volumes"]}
    assert mounts.keys() == volumes.keys()
    read = command_line.parse(extproc["args"]).envoy_yaml
    pools = one("ConfigMap")
    assert volumes["pools"]["configMap"]["name"] == pools["metadata"]["name"]
    assert read.parent == mounts["pools"]
    (cluster,) = yaml.safe_load(pools["data"][read.name])["static_resources"]["clusters"]
    assert Path(cluster["metadata"]["filter_metadata"]["smetric"]["model_dir"]) == mounts["model"]


def test_the_router_needs_nothing_of_the_kubernetes_api() -> None:
    """No token is mounted, so nothing can be done with one; and the container is nobody in particular."""
    pod = container("smetric-extproc")["pod"]
    assert pod["serviceAccountName"] == one("ServiceAccount")["metadata"]["name"]
    assert pod["automountServiceAccountToken"] is one("ServiceAccount")["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"]
    assert container("smetric-extproc")["securityContext"]["readOnlyRootFilesystem"]


def test_selectors_select() -> None:
    """Services, Deployments and the InferencePool mean the pods that there are."""
    for deployment, service in (("vllm", "vllm-pods"), ("smetric-extproc", "smetric-extproc")):
        spec = one("Deployment", deployment)["spec"]
        labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"] == labels
        assert one("Service", service)["spec"]["selector"] == labels
    vllm = one("Deployment", "vllm")["spec"]["template"]["metadata"]["labels"]
    assert one("InferencePool")["spec"]["selector"]["matchLabels"] == vllm
    assert one("Service", "vllm-pods")["spec"]["clusterIP"] == "None"


def pools_file(directory: Path) -> Path:
    """The ConfigMap as the kubelet mounts it: a link to a link into a hidden directory."""
    hidden = directory / "..2026_11_30"
    hidden.mkdir(parents=True)
    (directory / "..data").symlink_to(hidden)
    tree = yaml.safe_load(one("ConfigMap")["data"]["pools.yaml"])
    shutil.copytree(MODEL_DIR, directory / "model")
    tree["static_resources"]["clusters"][0]["metadata"]["filter_metadata"]["smetric"]["model_dir"] = "model"
    (hidden / "pools.yaml").write_text(yaml.safe_dump(tree, sort_keys=False), "utf-8")
    (directory / "pools.yaml").symlink_to("..data/pools.yaml")
    return directory / "pools.yaml"


def settings(path: Path) -> Settings:
    report = config.inspect(path)
    assert not report.problems, report.render()
    assert report.settings is not None
    return report.settings


def test_the_configuration_is_without_a_mistake(tmp_path: Path) -> None:
    """`check` has nothing to say; paths are relative to where the file is seen, not to where its link leads."""
    read = settings(pools_file(tmp_path / "pools"))
    assert read.default is not None
    assert (read.default.cluster, read.default.policy) == ("vllm", "smetric")
    assert read.pools["vllm"].model_dir == (tmp_path / "pools" / "model").resolve()


async def test_a_headless_service_becomes_instances(tmp_path: Path) -> None:
    """Each ready pod is an address of the name, with event addresses of its own; pods come and go with the answers."""
    answers = [["10.1.0.7", "10.1.0.5"], ["10.1.0.7"]]
    asked: list[str] = []
    seen: list[tuple[Instance, ...]] = []

    async def resolve(host: str) -> list[Address]:
        asked.append(host)
        return [ip_address(address) for address in answers[min(len(asked), len(answers)) - 1]]

    configured = settings(pools_file(tmp_path))
    (watcher,) = map(
        Discovery(configured, lambda _, found: seen.append(found), resolve)._make, configured.pools.values()
    )
    await watcher.look()
    await watcher.look()
    assert set(asked) == {one("Service", "vllm-pods")["metadata"]["name"]}
    port = service_ports("vllm-pods")[8000]
    first, second = seen
    assert [instance.address for instance in first] == [f"10.1.0.5:{port}", f"10.1.0.7:{port}"]
    events = ports(container("vllm"))
    assert first[0].kv_events == f"tcp://10.1.0.5:{events['kv-events']}"
    assert first[0].kv_replay == f"tcp://10.1.0.5:{events['kv-replay']}"
    assert [instance.address for instance in second] == [f"10.1.0.7:{port}"]


def test_the_engines_publish_where_the_router_listens() -> None:
    """vLLM's own arguments: the JSON is JSON, and its ports are the container's."""
    vllm = container("vllm")
    (given,) = (argument for argument in vllm["args"] if argument.startswith("--kv-events-config="))
    events = json.loads(given.partition("=")[2])
    assert events["enable_kv_cache_events"] is True
    named = ports(vllm)
    assert events["endpoint"] == f"tcp://*:{named['kv-events']}"
    assert events["replay_endpoint"] == f"tcp://*:{named['kv-replay']}"
    assert f"--port={named['http']}" in vllm["args"]
    assert "--enable-prefix-caching" in vllm["args"]


def test_gateways_reach_the_router_and_the_engines() -> None:
    """Every reference to a Service names one, and a port that it has."""
    pool = one("InferencePool")["spec"]
    picker = pool["endpointPickerRef"]
    assert picker["port"]["number"] in service_ports(picker["name"])
    assert [port["number"] for port in pool["targetPorts"]] == [service_ports("vllm-pods")[8000]]
    (extension,) = one("EnvoyExtensionPolicy")["spec"]["extProc"]
    (backend,) = extension["backendRefs"]
    assert backend["port"] in service_ports(backend["name"])
    assert one("DestinationRule")["spec"]["host"] == one("Service", "smetric-extproc")["metadata"]["name"]
    (route,) = (item for item in objects("envoy-gateway.yaml") if item["kind"] == "HTTPRoute")
    (engines,) = route["spec"]["rules"][0]["backendRefs"]
    assert engines["port"] in service_ports(engines["name"])
    (route,) = (item for item in objects("inferencepool.yaml") if item["kind"] == "HTTPRoute")
    (engines,) = route["spec"]["rules"][0]["backendRefs"]
    assert (engines["kind"], engines["name"]) == ("InferencePool", one("InferencePool")["metadata"]["name"])


def test_envoy_gateway_obeys_and_cannot_be_steered() -> None:
    """It reads the header that we set, and takes it from clients; the decision reaches the access log."""
    (source,) = one("BackendTrafficPolicy")["spec"]["loadBalancer"]["endpointOverride"]["extractFrom"]
    assert source == {"header": DESTINATION}
    removed = one("ClientTrafficPolicy")["spec"]["headers"]["earlyRequestHeaders"]["remove"]
    assert set(removed) == {DESTINATION, RANK, PREFILLER}
    (extension,) = one("EnvoyExtensionPolicy")["spec"]["extProc"]
    assert extension["processingMode"]["request"]["body"] == "Buffered"
    assert extension["metadata"]["writableNamespaces"] == [EXPLANATION]
    assert extension["failOpen"] is True


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """An Envoy as a gateway of the Inference Extension writes it, and the router with a file of pools alone."""
    made = Stack(engines=2, body_mode="FULL_DUPLEX_STREAMED", extproc_options=["--tls-self-signed"])
    pools = pools_file(tmp_path / "pools")
    tree = yaml.safe_load(pools.read_text("utf-8"))
    (cluster,) = tree["static_resources"]["clusters"]
    (groups,) = cluster["load_assignment"]["endpoints"]
    (pod,) = groups["lb_endpoints"]
    groups["lb_endpoints"] = [
        {
            "endpoint": {"address": {"socket_address": {"address": "localhost", "port_value": engine.port}}},
            "metadata": {
                "filter_metadata": {
                    "smetric": {
                        "kv_events": pod["metadata"]["filter_metadata"]["smetric"]["kv_events"].replace(
                            "5557", str(engine.events_port)
                        ),
                        "kv_replay": pod["metadata"]["filter_metadata"]["smetric"]["kv_replay"].replace(
                            "5558", str(engine.replay_port)
                        ),
                    }
                }
            },
        }
        for engine in made.engines
    ]
    pools.write_text(yaml.safe_dump(tree, sort_keys=False), "utf-8")
    assert made.extproc is not None
    arguments = made.extproc.arguments
    arguments[arguments.index(str(made.envoy_yaml))] = str(pools)
    _as_a_gateway_writes_it(made.envoy_yaml)
    with made as running:
        yield running


def _as_a_gateway_writes_it(path: Path) -> None:
    """TLS that nobody verifies, bodies streamed both ways, and not a word of ours."""
    tree = yaml.safe_load(path.read_text("utf-8"))
    static = tree["static_resources"]
    reach_by_tls(tree)
    (engines,) = (cluster for cluster in static["clusters"] if cluster["name"] == "engines")
    del engines["metadata"]
    for endpoint in engines["load_assignment"]["endpoints"][0]["lb_endpoints"]:
        del endpoint["metadata"]
    manager = static["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    (extproc_filter,) = (one for one in manager["http_filters"] if one["name"].endswith("ext_proc"))
    del extproc_filter["typed_config"]["grpc_service"]["initial_metadata"]
    extproc_filter["typed_config"]["processing_mode"] |= {
        "response_body_mode": "FULL_DUPLEX_STREAMED",
        "response_trailer_mode": "SEND",
    }
    path.write_text(yaml.safe_dump(tree, sort_keys=False), "utf-8")


async def test_a_session_behind_a_gateway_that_knows_nothing_of_us(stack: Stack) -> None:
    """The defaults of the file apply: a first turn is balanced, and its follow-up goes where the history is cached."""
    opening = ("user", "tell me about agents " * 50)
    first = await post(stack, chat(opening))
    assert first.status == 200
    assert (await decision(stack, first))["reason"] == "first_turn"
    reply = first.json["choices"][0]["message"]["content"]
    follow_up = await post(stack, chat(opening, ("assistant", reply), ("user", "go on")))
    decided = await decision(stack, follow_up)
    assert (decided["reason"], decided["policy"]) == ("stick", "smetric")
    assert follow_up.engine == first.engine
